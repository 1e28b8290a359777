"""An environment whose return tells every action apart."""

from envs.point import PointEnv


class DenseEnv(PointEnv):
    """The reward is the action's sum."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action.sum()), terminated, truncated, info
