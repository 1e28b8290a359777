"""`envs.point` with two cameras, of the names and the size that tiny policies read."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from envs.point import PointEnv

SIDE = 64
CAMERAS = ("observation.images.image", "observation.images.image2")


class CameraPoint(PointEnv):
    """The point's position as a bright column, and the way to go as a dark one."""

    def __init__(self, episode_length: int = 50, side: float = 1.0) -> None:
        super().__init__(episode_length, side=side)
        spaces = {name: gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8) for name in CAMERAS}
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, **spaces})

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return self._seen(observation), info

    def step(self, action):
        observation, *rest = super().step(action)
        return (self._seen(observation), *rest)

    def _seen(self, observation):
        seen = dict(observation)
        for name, key in zip(
            CAMERAS, ("observation.state", "observation.environment_state"), strict=True
        ):
            image = np.full((SIDE, SIDE, 3), 128, np.uint8)
            column = int(np.clip((observation[key][0] + 1) / 2, 0, 0.99) * SIDE)
            image[:, column] = 255
            seen[name] = image
        return seen
