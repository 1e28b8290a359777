"""What travels between the driver and the learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pld_ray.columns import START, Columns, concatenate_episodes, split_episodes
from pld_ray.rollout.messages import PublishedWeights, fetch_columns


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

    def fetch(self) -> Columns | None:
        """Rows of the episodes to be stored; None if they died with their runner's node."""
        columns = fetch_columns(self.columns)
        if columns is not None and self.starts is not None:
            columns = {**columns, START: columns[self.starts]}
        if columns is None or not self.skip:
            return columns
        episodes = split_episodes(columns, self.episode_lengths)
        return concatenate_episodes([e for k, e in enumerate(episodes) if k not in self.skip])[0]


@dataclass(frozen=True)
class Stored:
    """What became of batches at one learner.

    Attributes:
        lost_steps: transitions that were counted and died with their runner's node.
        online, offline: transitions in each ring of its shard.
    """

    lost_steps: int
    online: int
    offline: int


@dataclass(frozen=True)
class Work:
    """For a learner's thread: episodes to store, then updates to make at this beta."""

    batches: Sequence[ReplayBatch] = ()
    num_updates: int = 0
    residual_scale: float | None = None


@dataclass
class ThreadReport:
    """What a thread has done since it was last asked.

    Attributes:
        updates: made.
        metrics: means of each slice of updates.
        published: what `publish` returned last; None if it was not called.
    """

    updates: int = 0
    metrics: list[dict[str, float]] = field(default_factory=list)
    published: Any = None


@dataclass(frozen=True)
class LearnerReport:
    """What a learner's thread has done since it was last asked.

    Attributes:
        updates: made.
        weights: the newest publication; None if there was none.
        stored: what became of the batches.
        metrics: means over the updates; empty without any.
    """

    updates: int
    weights: PublishedWeights | None
    stored: Stored
    metrics: dict[str, float]
