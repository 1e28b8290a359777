"""A learnt policy that plays in a pool, as a runner asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from pld_ray.policies.protocol import Prediction
from pld_ray.pool import PoolClient


class PooledPolicy:
    """A `BasePolicy`: the pool's replicas, with this runner's noise and weights.

    Equal seeds and weights give the answers of an inline `ChunkPolicy`, bit for bit on the same
    kind of device.

    Args:
        client: of the pool.
        seed, cloned: of `ChunkPolicy`.
        version: of the weights, see `BasePolicyPool.publish`.

    Attributes:
        version, seed: may be set.
    """

    def __init__(self, client: PoolClient, seed: Sequence[int], cloned: bool, version: int) -> None:
        self.client, self.seed, self.cloned, self.version = client, list(seed), cloned, version
        self.action_dim, self.chunk_size = client.action_dim, client.chunk_size
        self.n_action_steps = client.n_action_steps
        self.input_features = client.input_features
        self.fingerprint = client.fingerprint

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """Chunks [B, H, A]."""
        seeds = [0] * len(env_ids) if seeds is None else seeds
        rows = [[*self.seed, int(seed)] for seed in seeds]
        weights = self.version, self.cloned
        return self.client.submit(observations, tasks, env_ids, rows, weights=weights).result()


class PlaysElsewhere(nn.Module):
    """In the place of a runner's networks: nothing, whatever weights come."""

    image_columns: Mapping[str, str] = {}
    trained_only: Sequence[str] = ()

    def keep_what_acts(self) -> None:
        """Nothing."""

    def acting_state(self) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}
