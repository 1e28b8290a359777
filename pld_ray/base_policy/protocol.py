"""What a frozen base policy must answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

BATCH_ROWS = 8
"""Default rows of every network call, see `LeRobotBasePolicy`."""


@runtime_checkable
class BasePolicy(Protocol):
    """A frozen policy that maps observations to chunks of actions.

    It keeps no state between calls: a row's answer depends on that row's observation, task and
    seed alone, bit for bit, whoever shares the batch. Who plays which chunk is `ChunkCache`'s.

    Attributes:
        action_dim: A, length of one action.
        n_action_steps: T, how many actions of a chunk are played before the policy is asked again.
        input_features: observation key -> shape of one row, as declared by the checkpoint (images
            channel-first there, given channel-last uint8).
        fingerprint: sha256 over configuration, weights and processors; equal fingerprints mean
            equal answers on equal hardware.
    """

    action_dim: int
    n_action_steps: int
    input_features: dict[str, tuple[int, ...]]
    fingerprint: str

    def reset(self, env_ids: Sequence[int]) -> None:
        """An episode starts in these environments. Stateless policies have nothing to do."""

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> np.ndarray:
        """One chunk of actions per row.

        Args:
            observations: key -> [B, ...]; keys that the policy does not use are ignored.
            tasks: B instructions in words.
            env_ids: B environment numbers, for policies that key anything by environment.
            seeds: B integers; a stochastic policy draws row i's noise from seed i alone.

        Returns:
            [B, T, A] float32 in environment units.
        """
        ...
