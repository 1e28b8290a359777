"""The RLModule: `ChunkedNetworks` behind RLlib's API."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.columns import Columns

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.columns import BASE_ACTION
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies.actors import load_actor
from pld_ray.rllib.chunked.pooled import PlaysElsewhere
from pld_ray.rllib.module import NetworksModule


class ChunkedModule(NetworksModule):
    """Its chunks are planned and played out by the environment, which shows the next action."""

    def make_networks(self) -> ChunkedNetworks | PlaysElsewhere:
        if self.model_config["pooled"] and self.inference_only:
            return PlaysElsewhere()
        params = ACRLPDParams(**self.model_config["params"])
        spaces, actions = self.observation_space, self.action_space
        seed, tasks = self.model_config["seed"], self.model_config["tasks"]
        seeing = load_actor(params, tasks)
        return ChunkedNetworks.of_spaces(spaces, actions, params, seed, seeing, tasks)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: batch[Columns.OBS][BASE_ACTION]}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward_inference(batch)
