"""A tiny environment and base policy whose every number can be computed by hand."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from pld_ray.policies import Prediction


class CountingEnv(gym.Env):
    """Observation (episode number, step); truncated after `length` steps."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.observation_space = gym.spaces.Dict(
            {"observation.state": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        )
        self.action_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.episode, self.steps, self.init_state_id = -1, 0, -1
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        self.init_state_id = (options or {}).get("init_state_id", -1)
        return self._observation(), self._info()

    def step(self, action):
        self.actions.append(np.array(action))
        self.steps += 1
        return self._observation(), 0.0, False, self.steps >= self.length, self._info()

    def _observation(self):
        return {"observation.state": np.array([self.episode, self.steps], dtype=np.float32)}

    def _info(self):
        return {"is_success": False, "task": "count", "init_state_id": self.init_state_id}


class CountingPolicy:
    """Chunks of two actions: (episode, step of the request, index in the chunk) / 100."""

    action_dim = 3
    n_action_steps = 2
    input_features = {"observation.state": (2,)}
    fingerprint = "counting"

    def infer(self, observations, tasks, env_ids, seeds=None):
        state = observations["observation.state"]
        chunk = np.zeros((len(state), 2, 3), dtype=np.float32)
        chunk[:, :, :2] = state[:, None]
        chunk[:, 1, 2] = 1
        return Prediction(chunk / 100)
