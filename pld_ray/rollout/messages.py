"""What travels between driver, runners and learners: requests, and episodes or a failure."""

from __future__ import annotations

import pathlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pld_ray.errors import UserError
from pld_ray.rollout.episode import EpisodeSummary


class EnvRunnerError(UserError, RuntimeError):
    """Something in a runner raised; the message says what and where."""


@dataclass(frozen=True)
class PublishedWeights:
    """What runners act with: the module's inference state, and how many updates it has seen."""

    updates: int
    state: Any
    """Reference to the state in the object store."""


@dataclass(frozen=True)
class SampleRequest:
    """What a runner is asked for.

    Attributes:
        num_steps: environment steps at least, over all its environments.
        base_only: act as the base policy alone (offline collection, warm-up).
        random_actions: with `base_only`, uniform actions in place of the base policy's.
        expert: with `base_only`, the scripted expert's actions in place of the base policy's.
        explore: noise on the residual's actions; without it they are the deterministic ones.
        keep_probing: the steps of probing are part of an episode's columns.
        intervene: a person may take over, where the runner has one.
        env_steps: of the run so far.
        weights_updates: gradient updates behind the weights that the runner has, unless it takes
            `weights` first.
        weights: taken first; None keeps what it has.
        generation: comes back with the batch: what was asked for before a restore is not taken.
        stall_timeout_s: after so long the runner's process ends itself and Ray starts another;
            None is never.
        metrics_interval_s: seconds between two batches that bring RLlib's metrics.
    """

    num_steps: int
    base_only: bool = False
    random_actions: bool = False
    expert: bool = False
    explore: bool = True
    keep_probing: bool = False
    intervene: bool = False
    env_steps: int = 0
    weights_updates: int = 0
    weights: PublishedWeights | None = None
    generation: int = 0
    stall_timeout_s: float | None = None
    metrics_interval_s: float = 0.0


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes that have ended since a runner's last batch.

    Attributes:
        columns: rows of the stored episodes, or a reference to them in the object store.
        episode_lengths: transitions of each stored episode, in order.
        episodes: a summary of each, those that ended while probing and are not stored too.
        num_env_steps: stepped now, probing included.
        oldest_start: `start` of the open episode that began first.
        metrics: RLlib's of the runner; None if they were sent just now.
        generation: of the request.
        control_steps, late_steps: of a control rate, and those after which the next one began late.
    """

    columns: Any
    episode_lengths: list[int]
    episodes: list[EpisodeSummary]
    num_env_steps: int
    oldest_start: int = 0
    metrics: Any = None
    generation: int = 0
    control_steps: int = 0
    late_steps: int = 0


@dataclass(frozen=True)
class ReplayBatch:
    """Episodes for the replay.

    Attributes:
        columns: rows of all episodes, or a reference to them in the object store.
        episode_lengths: transitions of each.
        buffer: `online` or `offline`.
        shard: the learner that stores them, modulo the number of learners.
        starts: bool column whose rows alone may start a training window; None is every transition.
        skip: indices of episodes that are not stored.
    """

    columns: Any
    episode_lengths: list[int]
    buffer: str = "online"
    shard: int = 0
    starts: str | None = None
    skip: Sequence[int] = ()

    @property
    def kept(self) -> list[int]:
        """Lengths of the episodes that are to be stored."""
        return [n for k, n in enumerate(self.episode_lengths) if k not in self.skip]


@dataclass(frozen=True)
class Failure:
    """What a runner sends in place of a result: RLlib takes an exception that is raised in a
    runner's process for a dead runner, restores it, and so on for ever."""

    message: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What was raised, and where."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        file = pathlib.Path(where.filename).name
        return cls(f"{type(error).__name__}: {error} ({file}:{where.lineno})")

    def error(self) -> EnvRunnerError:
        """What is raised for it, where the result was waited for."""
        return EnvRunnerError(f"an env runner cannot go on: {self.message}")


def without_failures[T](replies: Sequence[T | Failure]) -> list[T]:
    """The replies; EnvRunnerError if one of them is a failure."""
    results: list[T] = []
    for reply in replies:
        if isinstance(reply, Failure):
            raise reply.error()
        results.append(reply)
    return results
