"""A point with a camera."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from envs.point import PointEnv

CAMERA = "observation.images.image"


def picture(state: np.ndarray) -> np.ndarray:
    """What the camera shows of a state, [8, 8, 3] uint8."""
    return np.tile((100 * state[:3]).astype(np.int64).astype(np.uint8), (8, 8, 1))


class PictureEnv(PointEnv):
    def __init__(self, episode_length: int = 50, side: float = 1.0) -> None:
        super().__init__(episode_length, side=side)
        image = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, CAMERA: image})

    def _observation(self):
        observation = super()._observation()
        return {**observation, CAMERA: picture(observation["observation.state"])}
