"""LeRobot imports this; the policy types register themselves."""

import pld_ray.plugin.configuration_pld  # noqa: F401
