"""What the learners are told to do, and what they say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pld_ray.rollout.messages import PublishedWeights, ReplayBatch


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
class LearnerReport:
    """What a learner's thread has done since it was last asked.

    Attributes:
        updates: made.
        weights: the newest publication; None if there was none.
        metrics: means of each slice of updates.
        stored: what became of the batches.
    """

    updates: int = 0
    weights: PublishedWeights | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)
    stored: Stored = Stored(0, 0, 0)
