"""The parts that an update is made of, where its activations would not fit at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pld_ray.algorithm.nonfinite import Batch


@dataclass(frozen=True)
class Dealing:
    """Which micro-batches of an update are computed here.

    Attributes:
        parts: K, of the gradients that are summed to one.
        turns: numbers of those that are computed here, in order; one at or past `parts` is computed
            for the sake of the others, and counts for nothing.
        numbered: what is drawn for a micro-batch follows from its number and the update's, so that
            it does not matter who computes it; else from whatever was drawn before.
    """

    parts: int
    turns: Sequence[int]
    numbered: bool

    @staticmethod
    def alone(accumulation: int) -> Dealing:
        """All of them here, one after the other."""
        return Dealing(accumulation, range(accumulation), numbered=accumulation > 1)


@dataclass
class MicroBatch:
    """Windows that are computed together.

    Attributes:
        batch: of the replay.
        number: in its update.
        share: 1 / K, its part of a mean over all; 0 of one that counts for nothing.
        observation: what the actor made of it, for as long as it serves.
        x: the critics' features of it, [B, Z].
    """

    batch: Batch
    number: int = 0
    share: float = 1.0
    observation: Any = None
    x: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """`x`, which has been computed."""
        assert self.x is not None
        return self.x

    def counted(self, weights: Tensor) -> Tensor:
        """Weights of its windows in a masked mean."""
        return weights if self.share else weights * 0.0


def mixed_seed(*numbers: int) -> int:
    """One seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
