"""Every setting of a run, each declared once, and the rules between them."""

from pld_ray.config.groups import (
    EnvConfig,
    PlacementConfig,
    TrackingConfig,
)
from pld_ray.config.intervention import InterventionConfig
from pld_ray.config.policy import PolicyConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.config.train import (
    ConfigError,
    TrainConfig,
    check_amounts,
    check_custom,
    check_sampling,
)

__all__ = [
    "ConfigError",
    "EnvConfig",
    "InterventionConfig",
    "PlacementConfig",
    "PolicyConfig",
    "ResidualSACParams",
    "TrackingConfig",
    "TrainConfig",
    "check_amounts",
    "check_custom",
    "check_sampling",
]
