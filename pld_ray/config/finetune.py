"""The configuration of `pld-ray finetune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pld_ray.config.groups import (
    CheckpointConfig,
    EnvConfig,
    PlacementConfig,
    RunnersConfig,
    TrackingConfig,
)
from pld_ray.config.policy import PolicyConfig
from pld_ray.config.train import ConfigError, TrainConfig, check_declared
from pld_ray.options import option, with_default


@dataclass
class FinetunedPolicyConfig:
    """The LeRobot policy that is fine-tuned; its own loss and processors are used."""

    type: Literal["lerobot"] = option("lerobot", "`lerobot`: a LeRobot policy folder.")
    path: str | None = with_default(PolicyConfig, "path", None)
    dtype: Literal["float32", "bfloat16"] | None = with_default(PolicyConfig, "dtype", None)
    rename_map: dict[str, str] = option(
        {}, "Dataset's observation name -> the policy's; empty is what the policy was trained with."
    )
    tokenizer_path: str | None = with_default(PolicyConfig, "tokenizer_path", None)

    def loader(self) -> dict[str, object]:
        """What `load_base_policy` is given beside the path; only what differs from its defaults."""
        settings = {
            "dtype": self.dtype,
            "rename_map": dict(self.rename_map),
            "tokenizer_path": self.tokenizer_path,
        }
        return {name: value for name, value in settings.items() if value}


@dataclass
class FinetuneParams:
    """Supervised fine-tuning: AdamW, warm-up and cosine, an averaged copy that is exported."""

    name: Literal["finetune"] = option(
        "finetune", "What tells this configuration from that of another algorithm."
    )
    batch_size: int = option(
        64, "Windows of an update, over all micro-batches.", within="[1, 65536]"
    )
    accumulation: int = option(
        1,
        "Micro-batches of an update for each learner, which bound its memory; times the learners "
        "they must divide `batch_size`.",
        within="[1, 4096]",
    )
    learning_rate: float | None = option(
        None, "Highest one; None is the policy's own preset.", within="(0, 1]"
    )
    warmup_updates: int = option(
        100, "Updates over which the learning rate rises from 0.", within="[0, 1e9]"
    )
    final_learning_rate: float = option(
        0.1, "What half a cosine leads to, as a share of the highest.", within="[0, 1]"
    )
    weight_decay: float | None = option(
        None, "Of AdamW; None is the policy's own preset.", within="[0, 10]"
    )
    grad_clip_norm: float | None = option(
        None, "Greatest norm of a gradient; None is the policy's own preset.", within="(0, 1e6]"
    )
    ema_decay: float = option(
        0.999,
        "Of the averaged weights, which are evaluated and exported; smaller at the beginning, "
        "(1 + n) / (10 + n) after n updates. 0 exports the weights themselves.",
        within="[0, 1)",
    )
    freeze: list[str] = option(
        [],
        "Parameters whose names begin with one of these stay as they are, such as "
        "`[model.backbone]`, beside what the policy itself keeps frozen.",
    )
    precision: Literal["float32", "bfloat16"] = option(
        "float32",
        "What losses and gradients are computed in. With `bfloat16`, weights, gradients that are "
        "summed, moments, average and files stay float32 (autocast). Experimental.",
    )
    activation_checkpointing: bool = option(
        False,
        "Compute activations again in the backward pass in place of keeping them: less memory, "
        "more time, the same numbers. Experimental.",
    )


@dataclass
class LearnersConfig:
    """Processes that train one policy together, each with a part of every large parameter."""

    num_learners: int = option(
        0,
        "0 trains in this process; more are workers of Ray Train, which take the micro-batches in "
        "turn and shard the policy, its average and its optimiser (FSDP2). Experimental beyond two "
        "on CPUs.",
        within="[0, 4096]",
    )
    min_learners: int | None = option(
        None,
        "So few are enough to start, or to start again, where the cluster has no room for all; "
        "None waits for all. The numbers stay those of `num_learners`. Experimental.",
        within="[1, 4096]",
    )
    num_gpus_per_learner: float = with_default(RunnersConfig, "num_gpus_per_learner", 0.0)
    replicas: int = option(
        1,
        "Groups of learners that hold all parameters each; within a group they are sharded. It "
        "must divide `num_learners`. Experimental.",
        within="[1, 4096]",
    )
    whole_parameter_mb: float = option(
        4.0,
        "Parameters smaller than this, and those of one dimension, stay whole on every learner.",
        within="[0, 1e6]",
        unit="MB",
    )


@dataclass
class LearnerPlacementConfig:
    """Where on a cluster the learners are."""

    learner: dict[str, float] = with_default(PlacementConfig, "learner", {})
    env_vars: dict[str, str] = with_default(PlacementConfig, "env_vars", {})
    working_dir: str | None = with_default(PlacementConfig, "working_dir", None)
    check: bool = with_default(PlacementConfig, "check", True)


@dataclass
class FinetuneEvaluationConfig:
    """What tells how good the policy is while it is fine-tuned."""

    interval_steps: int = option(
        500, "Updates between evaluations; 0 evaluates at the end only.", within="[0, 1e10]"
    )
    held_out_share: float = option(
        0.1, "Share of the episodes that are kept back for the validation loss.", within="[0, 1)"
    )
    validation_states: int = option(
        0,
        "Stored init states of `env` that are played after each; those of the least success and "
        "then of the greatest loss lose. 0 plays none, and the validation loss decides alone.",
        within="[0, 1e6]",
    )
    held_states: int = option(
        100,
        "Init states before those, which are never played here, so that what is measured on them "
        "later was not chosen by them.",
        within="[0, 1e6]",
    )
    tasks: list[str] = option([], "Tasks that are played; empty is `env.task`.", distinct=True)


@dataclass
class FinetuneCheckpointConfig(CheckpointConfig):
    """What is kept of a run, counted in updates."""

    interval_steps: int = option(
        1_000,
        "Updates between periodic checkpoints; 0 keeps the best and the final one only.",
        within="[0, 1e10]",
    )


@dataclass
class FinetuneConfig:
    """`pld-ray finetune`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    policy: FinetunedPolicyConfig = field(default_factory=FinetunedPolicyConfig)
    algorithm: FinetuneParams = field(default_factory=FinetuneParams)
    learners: LearnersConfig = field(default_factory=LearnersConfig)
    placement: LearnerPlacementConfig = field(default_factory=LearnerPlacementConfig)
    evaluation: FinetuneEvaluationConfig = field(default_factory=FinetuneEvaluationConfig)
    checkpoint: FinetuneCheckpointConfig = field(default_factory=FinetuneCheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    dataset: list[str] = option(
        [],
        "LeRobotDatasets, or folders of them, that are learnt from; the command's arguments.",
        path="any",
    )
    episodes: Literal["successes", "all"] = option(
        "successes",
        "Which episodes are learnt from; where a dataset does not say what succeeded, all did.",
    )
    dataset_weights: list[float] = option(
        [],
        "Share of the windows that each entry of `dataset` gives, in their order, relative to each "
        "other; empty draws all frames alike.",
        within="(0, 1e6]",
    )
    total_steps: int = option(4_000, "Updates of the whole run.", within="[1, 1e10]")
    seed: int = option(
        0, "Of the episodes held out, the windows drawn and the noise.", within="[0, 2147483647]"
    )
    loader_workers: int = option(
        0, "Processes that read windows ahead; 0 reads in this one.", within="[0, 256]"
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "`auto` takes a GPU where there is one; learners use one where they were given one."
    )
    max_failures: int = with_default(TrainConfig, "max_failures", 3)
    ray_address: str | None = with_default(TrainConfig, "ray_address", None)
    output_dir: str = option(
        "outputs/finetune",
        "Folder of the run; unless it is resumed, nothing of another run may be there.",
        path="new",
    )

    def validate(self) -> None:
        """Raise ConfigError on the first value out of its range, or that another one excludes."""
        check_declared(self)
        learners = self.learners
        check_learners(learners, self.algorithm.batch_size, self.algorithm.accumulation)
        if self.algorithm.precision == self.policy.dtype == "bfloat16":
            raise ConfigError(
                "policy.dtype=bfloat16 trains weights that are bfloat16 themselves, and "
                "algorithm.precision=bfloat16 float32 weights: give one of the two"
            )
        if learners.num_learners and self.device == "cuda" and not learners.num_gpus_per_learner:
            raise ConfigError("device=cuda: learners need learners.num_gpus_per_learner above 0")
        if self.dataset_weights and len(self.dataset_weights) != len(self.dataset):
            raise ConfigError(
                f"dataset_weights has {len(self.dataset_weights)} entries for "
                f"{len(self.dataset)} datasets: give one for each, or none"
            )


def check_learners(learners: LearnersConfig, batch_size: int, accumulation: int) -> None:
    """Refuse learners among whom a batch cannot be divided, or who do not fit each other.

    Raises:
        ConfigError: naming the setting.
    """
    parts = accumulation * max(1, learners.num_learners)
    if batch_size % parts:
        by = f"algorithm.accumulation={accumulation}"
        if learners.num_learners > 1:
            by += f" times learners.num_learners={learners.num_learners}"
        raise ConfigError(
            f"algorithm.batch_size={batch_size}: must be a multiple of {by}, such as "
            f"{(batch_size // parts + 1) * parts}"
        )
    if learners.num_learners % learners.replicas:
        raise ConfigError(
            f"learners.replicas={learners.replicas}: must divide learners.num_learners="
            f"{learners.num_learners}"
        )
    if learners.min_learners is not None and learners.min_learners > learners.num_learners:
        raise ConfigError(
            f"learners.min_learners={learners.min_learners}: must be at most "
            f"learners.num_learners={learners.num_learners}"
        )
