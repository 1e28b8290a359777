"""Every setting of a run, each declared once, and the rules between them."""

from pld_ray.config.groups import (
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    PlacementConfig,
    RunnersConfig,
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
    check_resources,
    check_sampling,
)

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "EnvConfig",
    "EvaluationConfig",
    "InterventionConfig",
    "PlacementConfig",
    "PolicyConfig",
    "ResidualSACParams",
    "RunnersConfig",
    "TrackingConfig",
    "TrainConfig",
    "check_amounts",
    "check_custom",
    "check_resources",
    "check_sampling",
]
