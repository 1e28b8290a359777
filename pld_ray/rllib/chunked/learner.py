"""The learner of Q-chunking."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.data.normalizer import Normalizer
from pld_ray.replay import ChunkRing
from pld_ray.rllib.learner import OffPolicyLearner


class ACRLPDLearner(OffPolicyLearner):
    """Learns a policy over chunks: `ChunkedUpdate` on windows of both rings."""

    ring, update_class = ChunkRing, ChunkedUpdate

    def make_optimizers(self, networks: Any) -> dict[str, Optimizer]:
        return make_optimizers(networks, self.config.learner_params())

    def fit_normalizer(self, state: Normalizer | None = None) -> None:
        """As elsewhere, and the range of actions from the offline ring."""
        super().fit_normalizer(state)
        ring = self.replay.offline
        actions = ring.column("action", ring.transition_rows())
        self.networks.fit_actions(self.shard.gather(actions))
