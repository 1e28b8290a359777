"""The learner of Q-chunking as one of several ranks that hold a part of the actor each."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core import COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from torch.optim import Optimizer

from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.algorithm.shards import Shard
from pld_ray.rllib.chunked.learner import ACRLPDLearner
from pld_ray.rllib.learner import UPDATE_STATE
from pld_ray.sharded import chunked
from pld_ray.sharded.ranks import Ranks
from pld_ray.sharded.shards import Sharding


class ShardedACRLPDLearner(ACRLPDLearner):
    """Makes the updates of one `ACRLPDLearner` together with others, on the same data.

    All ranks call the same methods in the same order. What they save is the checkpoint of one
    learner, and they go on from such a one.

    Args:
        ranks: this process among all.
        sharding: of more than one.
        given: see RLlib's `Learner`.
    """

    def __init__(self, ranks: Ranks, sharding: Sharding | None, **given: Any) -> None:
        super().__init__(**given)
        self.ranks, self.sharding = ranks, sharding

    def _make_module(self) -> Any:
        module = super()._make_module()
        networks: Any = module[DEFAULT_MODULE_ID].unwrapped().networks
        if self.sharding is not None:
            policy_type = networks.actor.checkpoint.policy_type
            chunked.shard_networks(networks, self.sharding, policy_type)
        return module

    def own_shard(self) -> Shard:
        """All of the replay: whose turn a micro-batch is, `ranks` says."""
        return Shard()

    @property
    def is_first(self) -> bool:
        return self.ranks.first

    def replay_device(self) -> torch.device:
        """The host's memory; the device's is for what is sharded."""
        return torch.device("cpu")

    def make_optimizers(self, networks: Any) -> dict[str, Optimizer]:
        return chunked.make_optimizers(networks, self.config.learner_params())

    def make_update(self, optimizers: dict[str, Optimizer], seed: int) -> chunked.ShardedUpdate:
        return chunked.ShardedUpdate(
            self.networks, optimizers, self.replay, self.params, seed, self.ranks
        )

    # --- checkpoint ------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kw: Any) -> dict:
        """What a single learner's is; empty but on the first rank."""
        groups = trained_parameters(self.networks)
        states = {
            name: chunked.whole_optimizer_state(optimizer, groups[name], self.ranks)
            for name, optimizer in self._own_optimizers(groups)
        }
        weights = chunked.whole_state(self.networks.state_dict(), self.ranks)
        if not self.ranks.first:
            return {}
        return {
            COMPONENT_RL_MODULE: {DEFAULT_MODULE_ID: weights},
            COMPONENT_OPTIMIZER: {
                registered_name(name): {"module_id": DEFAULT_MODULE_ID, "state": state}
                for name, state in states.items()
            },
            UPDATE_STATE: self._update_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        chunked.take_networks(self.networks, state[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID])
        groups = trained_parameters(self.networks)
        for name, optimizer in self._own_optimizers(groups):
            saved = state[COMPONENT_OPTIMIZER][registered_name(name)]["state"]
            chunked.take_optimizer_state(optimizer, groups[name], saved)
        self._set_update_state(state[UPDATE_STATE])

    def _own_optimizers(self, names: Any) -> list[tuple[str, Optimizer]]:
        return [(name, self.get_optimizer(DEFAULT_MODULE_ID, name)) for name in names]


def registered_name(name: str) -> str:
    """Under which RLlib keeps an optimiser."""
    return f"{DEFAULT_MODULE_ID}_{name}"
