"""The configuration of `pld-ray acrlpd`, and of which command a stored one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.policy import PolicyConfig
from pld_ray.config.train import ConfigError, TrainConfig
from pld_ray.options import option, with_default


@dataclass
class NoPolicyConfig(PolicyConfig):
    """There is no frozen policy: the policy is what is learnt."""

    type: Literal["none"] = option("none", "`none`: the policy is what is learnt.")  # type: ignore[assignment]
    placement: Literal["inline", "pool"] = option(
        "inline",
        "`inline`: what is learnt plays in each env runner. `pool`: in Ray actors, for big actors; "
        "runners then hold no networks. Experimental: no big policy has played there.",
    )


@dataclass
class ACRLPDTrainConfig(TrainConfig):
    """`pld-ray acrlpd`."""

    policy: NoPolicyConfig = field(default_factory=NoPolicyConfig)
    algorithm: ACRLPDParams = field(default_factory=ACRLPDParams)  # type: ignore[assignment]
    demo_episodes: Literal["successes", "all"] = with_default(TrainConfig, "demo_episodes", "all")

    def validate(self) -> None:
        """As `TrainConfig.validate`; further, there is nothing of a base policy to keep."""
        super().validate()
        for name in ("offline_cache", "pretrained_critic"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} is of pld-ray train: pld-ray acrlpd has no base policy")
        pooled, runners = self.uses_pool, self.runners
        check_pool(pooled, runners.sampling, self.evaluation.num_env_runners)

    @property
    def uses_pool(self) -> bool:
        return self.policy.placement == "pool"


def check_pool(pooled: bool, sampling: str, evaluation_runners: int) -> None:
    """Refuse those who would ask a pool of what is learnt for weights that it has no more.

    Raises:
        ConfigError: naming the option.
    """
    if pooled and sampling == "asynchronous":
        raise ConfigError(
            "policy.placement=pool with runners.sampling=asynchronous: runners would act with "
            "several versions of a policy of which the pool keeps the last; choose pipelined"
        )
    if pooled and evaluation_runners:
        raise ConfigError(
            f"policy.placement=pool with evaluation.num_env_runners={evaluation_runners}: they "
            "would play weights that the pool keeps no more while training goes on; set it to 0"
        )


NAMED: dict[str, type] = {"acrlpd": ACRLPDTrainConfig, "finetune": FinetuneConfig}
"""`algorithm.name`, which is also the command's, -> its configuration; `train` has no name."""


def config_class_of(mapping: Mapping[str, Any]) -> Any:
    """The class whose configuration a mapping holds, by `algorithm.name`."""
    algorithm = mapping.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
    return NAMED.get(str(name), TrainConfig)


def check_command(mapping: Mapping[str, Any], config_class: type, path: str) -> None:
    """Refuse what `algorithm.name` says is of another command.

    Raises:
        ConfigError: naming the file.
    """
    found = config_class_of(mapping)
    if found not in (TrainConfig, config_class):
        command = command_of(found)
        raise ConfigError(f"{path} is a configuration of pld-ray {command}, by its algorithm.name")


def command_of(config_class: type) -> str:
    """The command that takes configurations of a class."""
    return next((name for name, of in NAMED.items() if of is config_class), "train")
