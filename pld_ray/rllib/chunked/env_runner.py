"""The env runner of Q-chunking: what is learnt plays in the base policy's place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pld_ray.columns import BASE_ACTION
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.evaluation.play import EpisodeResult, play_init_states
from pld_ray.evaluation.requests import Contestant
from pld_ray.evaluation.video import Film, film_init_state
from pld_ray.policies import ChunkCache
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.spaces import shapes_of
from pld_ray.rllib.chunked.pooled import PooledPolicy
from pld_ray.rllib.env_runner import OffPolicyEnvRunner
from pld_ray.rollout import factory
from pld_ray.rollout.messages import EpisodeBatch, PublishedWeights, SampleRequest
from pld_ray.rollout.vector_env import InfosPerEnv, Observation

NO_RESIDUAL = ResidualSACParams(residual_scale=0.0, use_probing=False)
"""Settings of episodes that no residual takes over."""


class NoResidual:
    """Composes nothing."""

    residual_scale = 0.0


class ACRLPDEnvRunner(OffPolicyEnvRunner):
    """The vector environment plans and plays the policy's chunks, and shows each action as its
    `base_action`; whoever steps it takes that."""

    stream_params, _actor = NO_RESIDUAL, NoResidual()
    _policy: ChunkPolicy | PooledPolicy
    _version = 0

    def make_env(self) -> None:
        super().make_env()
        if hasattr(self, "_policy"):  # a failed environment is rebuilt
            self.env.unwrapped.play(self._policy)

    def make_module(self) -> None:
        super().make_module()
        if self.env is None:  # the driver's, beside remote runners
            return
        self._policy = self._make_policy([self.config.seed or 0, self.worker_index or 0])
        self.env.unwrapped.play(self._policy)

    def restart_streams(self, seed: int) -> None:
        super().restart_streams(seed)
        if self.env is not None:
            self._policy.seed = [seed, self.worker_index or 0]
            self.env.unwrapped.play(self._policy)

    def sample_episodes(self, request: SampleRequest) -> EpisodeBatch:
        return super().sample_episodes(replace(request, base_only=True))

    def play(
        self, env: InfosPerEnv, init_state_ids: list[int], contestant: Contestant
    ) -> dict[int, EpisodeResult]:
        """The best of its candidates, or the flow alone for the contestant without residual."""
        env.unwrapped.play(self._make_policy([0], cloned=not contestant.residual))
        return play_init_states(env, init_state_ids)

    def film(self, init_state_id: int, weights: PublishedWeights) -> Film:
        """One init state, the flow alone beside the best of its candidates."""
        self.take_weights(weights)
        best = ChunkCache(self._make_policy([0]), num_envs=1)
        best.reset([0], [(0, init_state_id)])  # the noise of the evaluated episode
        whole = factory.for_evaluation(self.config.env_config)
        cloned = {**whole, "base_policy": self._make_policy([0], cloned=True)}

        def act(observation: Observation) -> np.ndarray:
            return best.act(observation, [""] * len(observation[BASE_ACTION]))

        return film_init_state(self.config.env, cloned, init_state_id, act)

    def take_weights(self, weights: PublishedWeights) -> None:
        if not self.config.uses_pool:
            super().take_weights(weights)
            return
        self._version = weights.state
        if isinstance(policy := getattr(self, "_policy", None), PooledPolicy):
            policy.version = weights.state

    def _make_policy(self, seed: list[int], cloned: bool = False) -> ChunkPolicy | PooledPolicy:
        if self.config.uses_pool:
            client = self.config.env_config["base_policy"]
            return PooledPolicy(client, seed, cloned, self._version)
        shapes = shapes_of(self.env.unwrapped.group.observation_space)
        return ChunkPolicy(self.module.networks, shapes, seed, cloned)
