"""Which algorithm a run's configuration is of."""

from __future__ import annotations

from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.rllib.chunked.config import ACRLPDConfig
from pld_ray.rllib.config import OffPolicyConfig, ResidualSACConfig


def algorithm_config(run: TrainConfig) -> OffPolicyConfig:
    """The configuration of what the command line trains."""
    if isinstance(run, ACRLPDTrainConfig):
        return ACRLPDConfig.of_run(run)
    return ResidualSACConfig.of_run(run)
