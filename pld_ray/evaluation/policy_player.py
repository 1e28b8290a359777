"""A policy alone on stored init states of one or several tasks, without Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pld_ray.config import EnvConfig
from pld_ray.evaluation.play import EpisodeResult, play_init_states
from pld_ray.policies import BasePolicy
from pld_ray.policies.no_policy import NoBasePolicy
from pld_ray.rollout import factory
from pld_ray.rollout.vector_env import InfosPerEnv


class PolicyPlayer:
    """Plays policies in this process; each task's simulator is opened once, with the reward that
    evaluations go by (`factory.for_evaluation`).

    Args:
        env: what is simulated.
        tasks: of the suite; empty is the one of `env`.
        prefetch: as in `BaseActionVectorEnv`.
    """

    def __init__(self, env: EnvConfig, tasks: Sequence[str] = (), prefetch: bool = False) -> None:
        self._vector = {"num_envs": 1, "prefetch": prefetch}
        self._settings = {
            task: factory.for_evaluation(dataclasses.replace(env, task=task).settings())
            for task in tasks or [env.task]
        }
        self._open: dict[str, InfosPerEnv] = {}

    def play(
        self, policy: BasePolicy, init_state_ids: Sequence[int]
    ) -> dict[str, list[EpisodeResult]]:
        """Task -> one episode from each init state, in their order; the policy is not kept.

        Raises:
            ValueError: the policy does not fit the environment.
        """
        results = {}
        for task, settings in self._settings.items():
            env = self._open.get(task)
            if env is None:
                config = {**settings, **self._vector, "base_policy": policy}
                env = self._open[task] = InfosPerEnv(factory.create_vector_env(config))
            else:
                env.env.play(policy)
            played = play_init_states(env, init_state_ids)
            results[task] = [played[state] for state in init_state_ids]
            env.env.play(NoBasePolicy(policy.action_dim))  # where it was, others need the memory
        return results

    def close(self) -> None:
        """End the simulators."""
        for env in self._open.values():
            env.close()
        self._open = {}
