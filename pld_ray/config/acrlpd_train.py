"""The configuration of `pld-ray acrlpd`, and of which command a stored one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.finetune import FinetuneConfig, LearnersConfig, check_learners
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
class OfflineLearnersConfig(LearnersConfig):
    """Processes that make the offline updates together, each with a part of the actor."""

    num_learners: int = option(
        0,
        "0 makes the offline updates where the online ones are made; more are workers of Ray Train "
        "that make them together, with actor=lerobot: they take the micro-batches in turn and "
        "shard the actor, its average and its optimiser (FSDP2). One process then goes on online. "
        "Experimental: tried with two on CPUs and a policy in miniature.",
        within="[0, 4096]",
    )
    checkpoint_updates: int = option(
        1_000,
        "Offline updates between checkpoints, from which a run goes on that was killed, or lost a "
        "learner; without learners of their own, too. Another is written at their end.",
        within="[1, 1e10]",
    )


@dataclass
class ACRLPDTrainConfig(TrainConfig):
    """`pld-ray acrlpd`."""

    policy: NoPolicyConfig = field(default_factory=NoPolicyConfig)
    algorithm: ACRLPDParams = field(default_factory=ACRLPDParams)  # type: ignore[assignment]
    demo_episodes: Literal["successes", "all"] = with_default(TrainConfig, "demo_episodes", "all")
    # runs of before there were learners lack it: `ray_address` is the last key that each has
    learners: OfflineLearnersConfig = field(default_factory=OfflineLearnersConfig)

    def validate(self) -> None:
        """As `TrainConfig.validate`; further, there is nothing of a base policy to keep."""
        super().validate()
        for name in ("offline_cache", "pretrained_critic"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} is of pld-ray train: pld-ray acrlpd has no base policy")
        check_pool(self.uses_pool, self.runners.sampling, self.evaluation.num_env_runners)
        if self.learners.num_learners:
            self._check_learners()

    def _check_learners(self) -> None:
        """Refuse what has nothing to be sharded, or could not be gone on with."""
        params, number = self.algorithm, self.learners.num_learners
        check_learners(self.learners, params.batch_size, params.accumulation)
        asked = f"learners.num_learners={number}"
        if params.actor != "lerobot":
            raise ConfigError(
                f"{asked} with algorithm.actor={params.actor}: they shard the big policy of "
                "actor=lerobot, and this one is small; set learners.num_learners=0"
            )
        if params.offline_updates == 0:
            raise ConfigError(
                f"{asked} with algorithm.offline_updates=0: they make the offline updates, and "
                "there are none; set learners.num_learners=0"
            )
        if params.compile_backend != "none":
            raise ConfigError(
                f"{asked} with algorithm.compile_backend={params.compile_backend}: what is sharded "
                "is not compiled; set it to none"
            )
        if self.runners.num_learners > 1:
            raise ConfigError(
                f"{asked} with runners.num_learners={self.runners.num_learners}: one learner goes "
                "on from the checkpoint that they leave; set runners.num_learners=0"
            )
        if self.ray_port is not None:
            raise ConfigError(
                f"{asked} with ray_port={self.ray_port}: the Ray of the offline updates ends with "
                "them, and those who have joined it would be lost; start a Ray and name it with "
                "ray_address"
            )

    @property
    def micro_batches(self) -> int:
        """Of an update, of all learners together; one that goes on alone has as many."""
        return self.algorithm.accumulation * max(1, self.learners.num_learners)

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
    algorithm, name = mapping.get("algorithm"), mapping.get("algorithm.name")
    if isinstance(algorithm, Mapping):
        name = algorithm.get("name", name)
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
