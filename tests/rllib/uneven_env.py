"""Quick successes and slow failures, in turn, and no two environments alike."""

import itertools

from envs.point import PointEnv

QUICK, SLOW = 4, 20


class UnevenEnv(PointEnv):
    """Environment i succeeds in its episodes i, i + 2, ...: after 4 steps; else it fails at 20."""

    _indices = itertools.count()

    def __init__(self):
        super().__init__(episode_length=SLOW)
        self._episode = next(UnevenEnv._indices) % 2 - 1

    def reset(self, *, seed=None, options=None):
        self._episode += 1
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, _, _, truncated, info = super().step(action)
        success = self._episode % 2 == 0 and self._steps == QUICK
        return observation, float(success), success, truncated, {**info, "is_success": success}
