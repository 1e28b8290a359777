"""What a pretrained critic was trained for, by the run whose checkpoint it is."""

from __future__ import annotations

from pld_ray.algorithm.residual.pretrained import check_pretrained
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.runs.listing import read_config

UNSEEN = ("critic_layer_norm", "reward_scale", "reward_bias")
"""Settings of `algorithm` that decide what a critic's weights mean, and leave no trace in them."""


def check_donor(config: TrainConfig, checkpoint: str) -> None:
    """Refuse a critic that means something else than this run's would.

    A checkpoint that was taken out of its run does not tell, and is taken.

    Raises:
        PretrainedCriticError: the folder is no checkpoint.
        ConfigError: its run had another value of one of `UNSEEN`.
    """
    folder = check_pretrained(checkpoint).absolute()
    donor = read_config(folder.parent.parent) or {"algorithm": {}}
    for name in UNSEEN:
        own = getattr(config.algorithm, name)
        found = donor["algorithm"].get(name, own)
        if found != own:
            raise ConfigError(
                f"pretrained_critic={checkpoint}: it was trained with algorithm.{name}={found}, "
                f"this run has {own}: set it to {found}, or pretrain with this run's"
            )
