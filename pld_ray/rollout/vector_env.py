"""The vector environment that carries the base policy's action in its observation."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pld_ray.base_policy import BasePolicy, ChunkCache

BASE_ACTION = "base_action"

Observation = dict[str, np.ndarray]


class BaseActionVectorEnv(VectorEnv):
    """N environments in this process, stepped in turn; the base policy is asked once per step.

    Each observation is the environment's own plus `base_action` [A] float32: what the frozen
    policy would do there, clipped to the action space. Because it is part of the observation, the
    final observation of a truncated episode has one too, and training, evaluation and any stock
    RLlib code see the same thing.

    Autoreset is NEXT_STEP: the step after an episode's end resets that environment, ignores its
    action and returns reward 0.

    Args:
        envs: environments with equal spaces; the observation space is a `Dict`.
        base_policy: the frozen policy, inline or a pool's client.

    Raises:
        ValueError: the policy's action dimension or a required observation differs from the env.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, envs: Sequence[gym.Env], base_policy: BasePolicy) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        observations, actions = check_policy_matches(
            base_policy, self.envs[0].observation_space, self.envs[0].action_space
        )
        self.single_action_space = actions
        self.single_observation_space = gym.spaces.Dict(
            {**observations.spaces, BASE_ACTION: actions}
        )
        self._low, self._high = actions.low, actions.high
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.base_policy = base_policy
        self.chunks = ChunkCache(base_policy, self.num_envs)
        self._next_init_states: deque[int] = deque()
        self._done = np.zeros(self.num_envs, dtype=bool)
        self._tasks = [""] * self.num_envs

    def set_init_states(self, init_state_ids: Sequence[int]) -> None:
        """Start the next episodes from these stored init states, in order; then sample again."""
        self._next_init_states = deque(int(i) for i in init_state_ids)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        seeds = seed_per_env(seed, self.num_envs)
        observations: list[Observation] = []
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            observation, info = self._reset_env(i, seeds[i])
            observations.append(observation)
            infos = self._add_info(infos, info, i)
        self._done[:] = False
        return self._with_base_action(observations), infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observations: list[Observation] = []
        infos: dict[str, Any] = {}
        rewards = np.zeros(self.num_envs, dtype=np.float32)
        terminated = np.zeros(self.num_envs, dtype=bool)
        truncated = np.zeros(self.num_envs, dtype=bool)
        for i, env in enumerate(self.envs):
            if self._done[i]:
                observation, info = self._reset_env(i)
            else:
                observation, reward, terminated[i], truncated[i], info = env.step(actions[i])
                rewards[i] = float(reward)
            observations.append(observation)
            infos = self._add_info(infos, info, i)
        self._done = terminated | truncated
        return self._with_base_action(observations), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _reset_env(self, i: int, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        options = None
        if self._next_init_states:
            options = {"init_state_id": self._next_init_states.popleft()}
        observation, info = self.envs[i].reset(seed=seed, options=options)
        self.chunks.reset([i])
        self._tasks[i] = str(info.get("task", ""))
        return observation, info

    def _with_base_action(self, observations: Sequence[Mapping[str, np.ndarray]]) -> Observation:
        batch = {key: np.stack([o[key] for o in observations]) for key in observations[0]}
        batch[BASE_ACTION] = np.clip(self.chunks.act(batch, self._tasks), self._low, self._high)
        return batch


def seed_per_env(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed per environment: a single seed becomes independent children of it."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        children = np.random.SeedSequence(int(seed)).generate_state(num_envs)
        return [int(s) for s in children]
    if len(seed) != num_envs:
        raise ValueError(f"got {len(seed)} seeds for {num_envs} environments")
    return list(seed)


def check_policy_matches(
    policy: BasePolicy, observation_space: gym.Space, action_space: gym.Space
) -> tuple[gym.spaces.Dict, gym.spaces.Box]:
    """The environment's spaces; a policy that cannot act in them is refused, naming what differs.

    Raises:
        ValueError: spaces of another kind than Dict and Box, another action dimension, or an
            observation that the environment lacks or has in another shape.
    """
    if not isinstance(observation_space, gym.spaces.Dict):
        raise ValueError(f"the environment's observations must be a Dict, not {observation_space}")
    if not isinstance(action_space, gym.spaces.Box):
        raise ValueError(f"the environment's actions must be a Box, not {action_space}")
    if (policy.action_dim,) != action_space.shape:
        raise ValueError(
            f"the base policy acts in {policy.action_dim} dimensions but the environment takes "
            f"{action_space.shape[0]}: choose a policy trained for this environment "
            "(--policy.path) or another environment (--env.suite, --env.task)"
        )
    for key, shape in policy.input_features.items():
        space = observation_space.spaces.get(key)
        if space is None:
            raise ValueError(
                f"the base policy needs {key!r}, which the environment does not give; it gives "
                f"{sorted(observation_space.spaces)} (cameras are chosen with --env.cameras)"
            )
        # images are declared channel-first by LeRobot and given channel-last by environments
        given = tuple(space.shape or ())
        if len(given) == 3:
            given = (given[2], *given[:2])
        if tuple(shape) != given:
            raise ValueError(f"the base policy needs {key!r} of shape {tuple(shape)}, not {given}")
    return observation_space, action_space
