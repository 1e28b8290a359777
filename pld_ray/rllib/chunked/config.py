"""`ACRLPDConfig`: Q-chunking as an RLlib user configures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import gymnasium as gym
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.stored_columns import replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig, OfflineLearnersConfig, check_pool
from pld_ray.data.demonstrations import EpisodeFacts
from pld_ray.networks.encoders import image_shapes
from pld_ray.policies.actors import actor_facts, check_actor
from pld_ray.pool import PoolSpec
from pld_ray.replay import ReplaySchema
from pld_ray.rllib.chunked.offline import check_episodes
from pld_ray.rllib.config import OffPolicyConfig
from pld_ray.rollout import factory
from pld_ray.rollout.vector_env import check_policy_matches


class ACRLPDConfig(OffPolicyConfig):
    """Configuration of `ACRLPD`; every field of `ACRLPDParams` is an attribute.

    Attributes:
        checkpoint_updates: an iteration of the offline phase ends at every multiple of it.

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
        self.checkpoint_updates = OfflineLearnersConfig().checkpoint_updates

    @classmethod
    def of_run(cls, run: Any) -> Self:
        """See the base; one process has as many micro-batches as those together who train before
        it, and ends an iteration where the run saves."""
        config = super().of_run(run).training(accumulation=run.micro_batches)
        config.checkpoint_updates = run.learners.checkpoint_updates
        return config

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from pld_ray.rllib.chunked.module import ChunkedModule

        return RLModuleSpec(
            module_class=ChunkedModule,
            model_config={
                "params": dataclasses.asdict(self.learner_params()),
                "seed": self.seed or 0,
                "tasks": self.tasks,
                "pooled": self.uses_pool,
            },
        )

    @property
    def tasks(self) -> list[str]:
        """The instruction, where the actor or an embedding reads it."""
        params: Any = self.learner_params()
        reads = params.actor == "lerobot" or params.task_embedding != "none"
        return factory.task_instructions(self.env_config, reads)

    @property
    def uses_pool(self) -> bool:
        return self.base_policy_options.placement == "pool"

    def pool_spec(self) -> PoolSpec:
        """A pool of what is learnt; `arguments` are still without the environment's spaces."""
        if not self.uses_pool:
            return super().pool_spec()
        spec = self.get_default_rl_module_spec()
        arguments = {name: spec.model_config[name] for name in ("params", "seed", "tasks")}
        make_policy = "pld_ray.policies.actors:make_player"
        return dataclasses.replace(
            super().pool_spec(), make_policy=make_policy, arguments=arguments
        )

    def validate(self) -> None:
        super().validate()
        check_pool(self.uses_pool, self.sampling, self.evaluation_num_env_runners)

    def get_default_learner_class(self) -> type:
        from pld_ray.rllib.chunked.learner import ACRLPDLearner

        return ACRLPDLearner

    def cameras(self, observations: gym.spaces.Dict) -> list[str]:
        params = self.learner_params()
        facts = actor_facts(params)
        return list(facts.cameras if facts else image_shapes(observations, params))

    def check_environment(self, env: Any, actions: gym.spaces.Box) -> None:
        facts = check_actor(self.learner_params(), self.tasks)
        if facts is not None:
            policy: Any = facts
            check_policy_matches(policy, env.observation_space, actions)

    def check_demonstrations(self, episodes: Sequence[EpisodeFacts]) -> None:
        check_episodes(episodes, self.learner_params(), self.num_learners)

    def replay_schema(self, spaces: gym.spaces.Dict, actions: gym.spaces.Box) -> ReplaySchema:
        params = self.learner_params()
        facts = actor_facts(params)
        light = dataclasses.replace(
            params,
            actor="flow",
            actor_path=None,
            improvement="best_of_n",
            temperature=0.0,
            task_embedding="none",
            fusion="concat",
        )
        networks = ChunkedNetworks.of_spaces(spaces, actions, light)
        if facts is not None:
            networks.image_columns = {key: key for key in facts.cameras}
        return replay_schema(networks, spaces, actions)
