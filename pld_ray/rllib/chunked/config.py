"""`ACRLPDConfig`: Q-chunking as an RLlib user configures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.stored_columns import replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.replay import ReplaySchema
from pld_ray.rllib.chunked.offline import check_episodes
from pld_ray.rllib.config import EpisodeFacts, OffPolicyConfig


class ACRLPDConfig(OffPolicyConfig):
    """Configuration of `ACRLPD`; every field of `ACRLPDParams` is an attribute.

    Example:
        >>> config = ACRLPDConfig().training(horizon=5, demo_path=["demonstrations"])
        >>> algorithm = config.build_algo()
    """

    run_class = ACRLPDTrainConfig
    params_class = ACRLPDParams

    def __init__(self, algo_class: type | None = None) -> None:
        from pld_ray.rllib.chunked.algorithm import ACRLPD
        from pld_ray.rllib.chunked.env_runner import ACRLPDEnvRunner

        super().__init__(algo_class=algo_class or ACRLPD)
        self.env_runner_cls = ACRLPDEnvRunner
        self.min_sample_timesteps_per_iteration = 0  # `ACRLPD.training_step` counts itself

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from pld_ray.rllib.chunked.module import ChunkedModule

        params: Any = dataclasses.asdict(self.learner_params())
        return RLModuleSpec(
            module_class=ChunkedModule, model_config={"params": params, "seed": self.seed or 0}
        )

    def get_default_learner_class(self) -> type:
        from pld_ray.rllib.chunked.learner import ACRLPDLearner

        return ACRLPDLearner

    def cameras(self, observations: gym.spaces.Dict) -> list[str]:
        return []

    def check_demonstrations(self, episodes: Sequence[EpisodeFacts]) -> None:
        check_episodes(episodes, self.learner_params())

    def replay_schema(self, spaces: gym.spaces.Dict, actions: gym.spaces.Box) -> ReplaySchema:
        networks = ChunkedNetworks.of_spaces(spaces, actions, self.learner_params())
        return replay_schema(networks, spaces, actions)
