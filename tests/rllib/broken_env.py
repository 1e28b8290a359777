"""An environment that can be made and never started."""

from envs.point import PointEnv


class BrokenEnv(PointEnv):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no floor to stand on")
