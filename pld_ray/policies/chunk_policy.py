"""A policy that is learnt, in the place of a base policy: chunks from `ChunkedNetworks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.policies.protocol import Prediction


class ChunkPolicy:
    """A `BasePolicy` with the weights that the networks have at the moment.

    Its answer to a row does not depend on who shares the request: each row is computed alone, or
    among `batch_rows` always, some of them padding.

    Args:
        networks: those of a learner, or of `keep_what_acts`.
        shapes: observation column -> shape of a row, of the columns that the networks read.
        seed: numbers with which a row's own seed is mixed; of a runner, so that its noise is its
            own.
        cloned: the flow alone, one draw of it, in place of the best of its candidates.
        batch_rows: rows of every network call; None computes row by row.

    Attributes:
        seed, cloned: may be set.
    """

    fingerprint = "learnt"

    def __init__(
        self,
        networks: ChunkedNetworks,
        shapes: Mapping[str, tuple[int, ...]],
        seed: Sequence[int] = (0,),
        cloned: bool = False,
        batch_rows: int | None = None,
    ) -> None:
        self.networks, self.seed, self.cloned = networks, list(seed), cloned
        self.batch_rows = batch_rows
        self.action_dim = networks.action_dim
        self.chunk_size = networks.params.horizon
        self.n_action_steps = networks.params.played
        self.input_features = {key: tuple(shapes[key]) for key in networks.observation_keys}
        for key in networks.image_columns:  # declared channel-first, as by LeRobot
            height, width, channels = shapes[key]
            self.input_features[key] = channels, height, width

    @property
    def num_candidates(self) -> int:
        """Chunks among which the critics choose."""
        return 1 if self.cloned else self.networks.params.acting_candidates

    def take_weights(self, state: Mapping[str, np.ndarray]) -> None:
        """Answer with this `acting_state` from now on."""
        self.networks.load_state_dict({k: torch.tensor(value) for k, value in state.items()})

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int | Sequence[int]] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """Chunks [B, H, A]; a row's seed may be several numbers."""
        seeds = [0] * len(env_ids) if seeds is None else seeds
        count = self.batch_rows or 1
        starts = range(0, len(seeds), count)
        parts = [self._chunks(observations, seeds, slice(k, k + count)) for k in starts]
        return Prediction(np.concatenate(parts))

    def _chunks(
        self,
        observations: Mapping[str, np.ndarray],
        seeds: Sequence[int | Sequence[int]],
        rows: slice,
    ) -> np.ndarray:
        """Of these rows, which with padding are `batch_rows`."""
        device = self.networks.action_low.device
        noise = np.concatenate([self._noise(seed) for seed in seeds[rows]], axis=1)
        observation = {
            key: torch.from_numpy(self._padded(observations[key][rows], 0)).to(device)
            for key in self.input_features
        }
        drawn = torch.from_numpy(self._padded(noise, 1)).to(device)
        with torch.inference_mode():
            chunks = self.networks.act(observation, drawn, self.cloned)
        return chunks[: noise.shape[1]].cpu().numpy()

    def _noise(self, seed: int | Sequence[int]) -> np.ndarray:
        """Of a row's candidates, [K, 1, ...]; of this row alone."""
        rng = np.random.default_rng([*self.seed, *np.atleast_1d(seed)])
        shape = (self.num_candidates, 1, *self.networks.ema_actor.noise_shape)
        return rng.standard_normal(shape, dtype=np.float32)

    def _padded(self, rows: np.ndarray, axis: int) -> np.ndarray:
        """With zeros after the last row."""
        lacking = (self.batch_rows or 1) - rows.shape[axis]
        if not lacking:
            return np.asarray(rows)
        return np.pad(rows, [(0, lacking if k == axis else 0) for k in range(rows.ndim)])
