"""A policy that is learnt, in the place of a base policy: chunks from `ChunkedNetworks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.policies.protocol import Prediction


def ready_to_act(networks: ChunkedNetworks, device: str) -> ChunkedNetworks:
    """The networks, frozen and on a device, with the vision encoder that is no module of theirs."""
    if networks.frozen_features is not None:
        networks.frozen_features.to(device)
    return networks.to(device).requires_grad_(False).eval()


class ChunkPolicy:
    """A `BasePolicy` with the weights that the networks have at the moment.

    Each row is computed alone: its answer does not depend on who shares the request.

    Args:
        networks: those of a learner, or of `keep_what_acts`.
        shapes: observation column -> shape of a row, of the columns that the networks read.
        seed: numbers with which a row's own seed is mixed; of a runner, so that its noise is its
            own.
        cloned: the flow alone, one draw of it, in place of the best of its candidates.

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
    ) -> None:
        self.networks, self.seed, self.cloned = networks, list(seed), cloned
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
        chunks = [self._chunk(observations, row, seed) for row, seed in enumerate(seeds)]
        return Prediction(np.stack(chunks))

    def _chunk(
        self, observations: Mapping[str, np.ndarray], row: int, seed: int | Sequence[int]
    ) -> np.ndarray:
        rng = np.random.default_rng([*self.seed, *np.atleast_1d(seed)])
        shape = (self.num_candidates, 1, *self.networks.ema_actor.noise_shape)
        device = self.networks.action_low.device
        noise = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(device)
        observation = {
            key: torch.from_numpy(np.asarray(observations[key][row : row + 1])).to(device)
            for key in self.input_features
        }
        with torch.inference_mode():
            return self.networks.act(observation, noise, self.cloned)[0].cpu().numpy()
