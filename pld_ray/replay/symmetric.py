"""Half of each batch from offline data, half from online (formula 6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pld_ray.replay.frame_ring import FrameRing
from pld_ray.replay.schema import PackedBatch


class SymmetricReplay:
    """Two rings with one schema.

    Args:
        offline: base-policy successes, demonstrations.
        online: what the learner's own policy experienced.

    Raises:
        ValueError: the schemas differ, or their features were computed by different encoders.
    """

    def __init__(self, offline: FrameRing, online: FrameRing) -> None:
        encoders = [ring.schema.features_fingerprint for ring in (offline, online)]
        if encoders[0] != encoders[1]:
            raise ValueError(
                "replay: the features of the offline ring are those of encoder "
                f"{encoders[0]}, of the online ring of encoder {encoders[1]}; compute both with one"
            )
        if offline.schema.describe() != online.schema.describe():
            raise ValueError("replay: the offline and the online ring have different columns")
        self.offline = offline
        self.online = online

    def __len__(self) -> int:
        """Transitions that can be sampled, of both rings."""
        return len(self.offline) + len(self.online)

    def sample(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> dict[str, Tensor]:
        """(6): B/2 offline rows, then B/2 online rows; all from one ring while the other is empty.

        Returns and raises as `FrameRing.sample`.
        """
        schema = self.online.schema
        if not len(self.offline):
            return self.online.sample(batch_size, n_step, gamma)
        if not len(self.online):
            return self.offline.sample(batch_size, n_step, gamma)
        num_offline = batch_size // 2
        halves = [
            self.offline.draw(num_offline, n_step, gamma),
            self.online.draw(batch_size - num_offline, n_step, gamma),
        ]
        return PackedBatch.join(halves).unpack(schema)

    def sample_windows(
        self,
        batch_size: int,
        horizon: int,
        gamma: float,
        positive_share: float,
        tail: str,
        n_step: int = 1,
        turn: int = 0,
    ) -> dict[str, Tensor]:
        """Half of the windows offline, half online; see `ChunkRing.sample_windows`.

        All are of one ring while the other has no window: with `drop`, none so long. Both must be
        ChunkRings.

        Args:
            batch_size: B.
            horizon, gamma, positive_share, tail, n_step: see there.
            turn: k, of an update of micro-batches of B windows each, from 0 on; halves and
                positive share are those of the first k + 1 together, less those of the first k.

        Raises:
            ValueError: neither ring has a window.
        """
        both: list[Any] = [self.offline, self.online]
        rings = [ring for ring in both if ring.has_windows(max(horizon, n_step), tail)]
        rings = rings or both[:1]  # which then says why there is none
        before, after = (dealt((turn + n) * batch_size, len(rings)) for n in (0, 1))
        parts = [
            ring.sample_windows(end - begin, horizon, gamma, positive_share, tail, n_step, begin)
            for ring, begin, end in zip(rings, before, after, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def seed(self, seed: int) -> None:
        """What is drawn from here on follows from this number."""
        for number, ring in enumerate((self.offline, self.online)):
            ring.generator.manual_seed(2 * seed + number)

    def observations(self) -> Tensor:
        """Observation vectors of all that may be sampled [len(self), D], offline first."""
        return torch.cat([self.offline.observations(), self.online.observations()])


def dealt(count: int, num_rings: int) -> list[int]:
    """How many of an update's first `count` windows each ring gives; the odd one is online."""
    return [count] if num_rings == 1 else [count // 2, count - count // 2]
