"""The residuals that are distilled; they play their base policy in one way."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.jobs.export import chosen
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.rllib.trained_base import check_trained_on
from pld_ray.rollout.factory import for_evaluation
from pld_ray.runs.layout import CONFIG_FILE, checkpoint_checksum
from pld_ray.runs.run_dir import RunDir

NOT_PLAYED = {"tokenizer_path", "features"}
"""Options of the base policy that change no action of it: a place, and what the networks see."""
NOT_SIMULATED = {"task", "assets", "fast_step"}
"""Settings of the environment: each run has its own, a place, and one without effect on results."""


@dataclass(frozen=True)
class Teacher:
    """A residual that is distilled."""

    run: RunDir
    config: TrainConfig
    checkpoint: pathlib.Path
    base_policy: str
    """Fingerprint of the policy that it corrects."""

    @property
    def task(self) -> str:
        """Of its run."""
        return self.config.env.task

    @property
    def origin(self) -> dict[str, Any]:
        """Where it comes from, as plain values."""
        return {
            "path": str(self.run.path),
            "checkpoint": self.checkpoint.name,
            "checksum": checkpoint_checksum(self.checkpoint),
        }


def asked_fingerprint(path: str | None) -> str:
    """Of the policy that `--policy.path` names.

    Raises:
        ConfigError: it is gone, or incomplete.
    """
    try:
        return open_checkpoint(path).fingerprint()
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.path: {error}") from error


def corrected_fingerprint(run: RunDir, path: str | None) -> str:
    """Of the base policy that a stored run corrects.

    Raises:
        ConfigError: it is gone, incomplete, or not the one that the run was trained on.
    """
    way = f"put it back, or write its new place as policy.path into {run.path / CONFIG_FILE}"
    try:
        found = open_checkpoint(path, way).fingerprint()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run.path}: {error}") from error
    if run.latest_checkpoint() is not None:
        check_trained_on(chosen(run, None), found, path)
    return found


def check_played_alike(teachers: Sequence[Teacher]) -> None:
    """Refuse runs whose base policy, or whose environment but for the task, is played otherwise:
    what they measured would not compare.

    Raises:
        ConfigError: naming a run, the settings and both values.
    """
    first = teachers[0]
    for teacher in teachers[1:]:
        if apart := [*differences(teacher.config, first.config)]:
            own = ", ".join(f"{name}={value!r}" for name, value, _ in apart)
            other = ", ".join(f"{name}={value!r}" for name, _, value in apart)
            raise ConfigError(
                f"{teacher.run.path} plays with {own}, and {first.run.path} with {other}: distil "
                "runs that play alike"
            )


def differences(one: TrainConfig, other: TrainConfig) -> Iterator[tuple[str, Any, Any]]:
    """Setting, value of `one` and of `other`, where they play the base policy otherwise."""
    options = {"prefetch", *one.policy.loader(), *other.policy.loader()} - NOT_PLAYED
    for name in sorted(options):
        own, others = getattr(one.policy, name), getattr(other.policy, name)
        if own != others:
            yield f"policy.{name}", own, others
    simulated, elsewhere = (for_evaluation(config.env.settings()) for config in (one, other))
    for name in sorted(simulated.keys() - NOT_SIMULATED):
        if simulated[name] != elsewhere[name]:
            yield f"env.{name}", simulated[name], elsewhere[name]
