"""The learner of Q-chunking."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.columns import INTERVENED, Columns
from pld_ray.data.normalizer import Normalizer
from pld_ray.replay import ChunkRing
from pld_ray.rllib.learner import OffPolicyLearner
from pld_ray.rollout.messages import ReplayBatch

log = logging.getLogger("pld_ray")


class ACRLPDLearner(OffPolicyLearner):
    """Learns a policy over chunks: `ChunkedUpdate` on windows of both rings."""

    ring, update_class = ChunkRing, ChunkedUpdate
    _told_of_a_person = False

    def make_optimizers(self, networks: Any) -> dict[str, Optimizer]:
        return make_optimizers(networks, self.config.learner_params())

    def fit_normalizer(self, state: Normalizer | None = None) -> None:
        """As elsewhere, and the range of actions from the offline ring."""
        super().fit_normalizer(state)
        ring = self.replay.offline
        actions = ring.column("action", ring.transition_rows())
        actions = self.shard.gather(actions)
        self.networks.fit_actions(actions)
        if self.is_first:
            self._tell("the demonstrations", actions)

    @property
    def is_first(self) -> bool:
        """Whether it speaks for all learners."""
        return bool(self.shard.rank == 0)

    def look_at(self, batch: ReplayBatch, columns: Columns) -> None:
        """Say, once in a run, that a person did what nothing learnt can do."""
        if batch.starts == INTERVENED and not self._told_of_a_person:
            actions = torch.from_numpy(columns["action"][columns[INTERVENED]])
            self._told_of_a_person = self._tell("a person", actions)

    def _tell(self, who: str, actions: Tensor) -> bool:
        """Warn of actions [n, A] of the environment that nothing learnt plays; whether any is."""
        if not len(actions):
            return False
        beyond = self.networks.out_of_reach(actions.to(self.device))
        if beyond:
            log.warning(
                "%s moved action dimension %s beyond the range of what acts: learnt from as if "
                "clipped to it",
                who,
                ", ".join(f"{number} by {by:.3g}" for number, by in beyond.items()),
            )
        return bool(beyond)
