"""A point that sees where the goal is: success shows in the picture alone."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from envs.point import PointEnv

CAMERA = "observation.images.image"
SIDE, PIXELS_PER_UNIT, DOT = 40, 80.0, 2


def picture(way: np.ndarray) -> np.ndarray:
    """The way to go [3] as a red dot (x, y) and a green one (z), at the centre when it is nothing;
    [40, 40, 3] uint8."""
    image = np.full((SIDE, SIDE, 3), 40, np.uint8)
    for channel, place in ((0, way[:2]), (1, (way[2], 0.0))):
        row, column = np.clip(SIDE / 2 + PIXELS_PER_UNIT * np.array(place), DOT, SIDE - 1 - DOT)
        rows, columns = (slice(int(c) - DOT, int(c) + DOT + 1) for c in (row, column))
        image[rows, columns, channel] = 255
    return image


class SightEnv(PointEnv):
    def __init__(self, episode_length: int = 30, side: float = 0.2) -> None:
        super().__init__(episode_length, side=side)
        image = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, CAMERA: image})

    def _observation(self):
        return {**super()._observation(), CAMERA: picture(self.way_to_go())}
