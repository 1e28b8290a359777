"""LeRobot imports this; the environment type registers itself."""

import envs.lerobot_env  # noqa: F401
