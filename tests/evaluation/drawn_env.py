"""A point that can be drawn without a graphics library."""

import os

import numpy as np

from envs.point import PointEnv


class DrawnEnv(PointEnv):
    def __init__(self, episode_length=50, render_mode=None):
        super().__init__(episode_length=episode_length)
        self.render_mode = render_mode

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self._position[0]), *rest  # tells every action apart

    def render(self):
        if os.environ.get("DRAWN_ENV_FAILS"):
            raise RuntimeError("no paint")
        return np.full((64, 64, 3), 5 * self._steps, dtype=np.uint8)
