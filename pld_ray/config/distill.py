"""The configuration of `pld-ray distill`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pld_ray.config.finetune import (
    FinetuneConfig,
    FinetunedPolicyConfig,
    FinetuneEvaluationConfig,
    FinetuneParams,
    LearnerPlacementConfig,
    LearnersConfig,
)
from pld_ray.config.groups import TrackingConfig
from pld_ray.config.train import check_declared
from pld_ray.options import option, with_default


@dataclass
class CollectedConfig:
    """What the policy is distilled from: successes from sampled placements."""

    teacher: Literal["residual", "base"] = option(
        "residual",
        "Who plays the tasks of the runs: base + `residual`, or the `base` policy alone, a control "
        "that shows what as much training on its own successes gives.",
    )
    residual_successes: int = option(
        50, "Successful episodes of the teacher on the task of each run.", within="[1, 1e6]"
    )
    base_successes: int = option(
        12,
        "Successful episodes of the base policy on each task; 0 mixes none in.",
        within="[0, 1e6]",
    )
    base_share: float = option(
        0.3, "Share of the windows that those of the base policy give.", within="[0, 1)"
    )
    base_tasks: list[str] = option(
        [],
        "Tasks on which the base policy is recorded; empty is all of the suite's, so that what is "
        "not distilled is not forgotten.",
        distinct=True,
    )
    num_env_runners: int = option(
        0, "Rollout processes while collecting; 0 steps in this process.", within="[0, 4096]"
    )


@dataclass
class DistilledParams(FinetuneParams):
    """How the policy learns from what was collected, see `pld-ray finetune`."""

    learning_rate: float | None = with_default(FinetuneParams, "learning_rate", 5e-4)
    batch_size: int = with_default(FinetuneParams, "batch_size", 128)


@dataclass
class HeldConfig:
    """Evaluation on stored init states, which neither training nor collecting resets to."""

    held_states: int = option(
        50, "Of each task; base, base + residual and distilled play all of them.", within="[1, 1e6]"
    )
    tasks: list[str] = option(
        [], "Tasks that are played; empty is all of the suite's.", distinct=True
    )


@dataclass
class DistillConfig:
    """`pld-ray distill`."""

    policy: FinetunedPolicyConfig = field(default_factory=FinetunedPolicyConfig)
    collected: CollectedConfig = field(default_factory=CollectedConfig)
    algorithm: DistilledParams = field(default_factory=DistilledParams)
    learners: LearnersConfig = field(default_factory=LearnersConfig)
    placement: LearnerPlacementConfig = field(default_factory=LearnerPlacementConfig)
    evaluation: HeldConfig = field(default_factory=HeldConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    total_steps: int = with_default(FinetuneConfig, "total_steps", 4_000)
    seed: int = with_default(FinetuneConfig, "seed", 0)
    max_failures: int = with_default(FinetuneConfig, "max_failures", 3)
    ray_address: str | None = with_default(FinetuneConfig, "ray_address", None)
    output_dir: str = option(
        "outputs/distill",
        "Folder of the result; the same command goes on with what is there.",
        path="new",
    )

    def validate(self) -> None:
        """Raise ConfigError on the first value out of its range, or that another one excludes."""
        check_declared(self, is_new=True)
        self.learning([], [], "outputs/finetune").validate()

    def learning(self, datasets: list[str], weights: list[float], folder: str) -> FinetuneConfig:
        """The fine-tuning on what was collected; the last weights are taken, none is chosen."""
        return FinetuneConfig(
            policy=self.policy,
            algorithm=self.algorithm,
            learners=self.learners,
            placement=self.placement,
            evaluation=FinetuneEvaluationConfig(held_out_share=0.05),
            tracking=self.tracking,
            dataset=datasets,
            dataset_weights=weights,
            total_steps=self.total_steps,
            seed=self.seed,
            max_failures=self.max_failures,
            ray_address=self.ray_address,
            output_dir=folder,
        )
