"""An environment whose observations have names that nobody reads says so, and trains."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from envs.point import PointEnv
from pld_ray.policies import NoBasePolicy
from pld_ray.rollout.vector_env import BaseActionVectorEnv


class Showing(PointEnv):
    """Shows further columns of these names."""

    def __init__(self, names):
        super().__init__()
        more = {name: gym.spaces.Box(-1, 1, (3,), np.float32) for name in names}
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, **more})
        self.more = {name: np.zeros(3, np.float32) for name in names}

    def _observation(self):
        return {**super()._observation(), **self.more}


@pytest.fixture
def told(monkeypatch):
    """What is warned of."""
    messages = []
    stub = SimpleNamespace(warning=lambda text, *values: messages.append(text % values))
    monkeypatch.setattr("pld_ray.rollout.unread_columns.logger", stub)
    return messages


def test_columns_that_nobody_reads_are_told_of_once(told):
    for _ in range(2):
        env = BaseActionVectorEnv([Showing(["goal", "force"])], NoBasePolicy(7))
    assert {"goal", "force"} <= env.reset()[0].keys()
    (message,) = told
    assert message.startswith("the environment's observations ['force', 'goal'] are stored, but")
    assert "read observation.state, observation.environment_state and pictures" in message


def test_names_that_are_read_are_not(told):
    policy = NoBasePolicy(7)
    policy.input_features = {"touch": (3,)}
    BaseActionVectorEnv([Showing(["touch", "task_index"])], policy)
    assert not told
