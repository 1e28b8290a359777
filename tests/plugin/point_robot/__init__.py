"""A robot for `lerobot-rollout`: `envs.point`, whose state holds the way to the goal besides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from lerobot.robots import Robot, RobotConfig

from envs.observations import ENVIRONMENT_STATE, STATE
from envs.point import ACTION_DIM, PointEnv

STATE_DIM = 6


class StatePoint(gym.ObservationWrapper):
    """All that there is to know is in "observation.state" [6], as a robot's joints are."""

    def __init__(self) -> None:
        super().__init__(PointEnv(episode_length=10_000))
        space = gym.spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
        self.observation_space = gym.spaces.Dict({STATE: space})

    def observation(self, observation):
        return {STATE: np.concatenate([observation[STATE][:3], observation[ENVIRONMENT_STATE][:3]])}


@RobotConfig.register_subclass("point")
@dataclass(kw_only=True)
class PointRobotConfig(RobotConfig):
    """Where it writes what it saw and did."""

    record: str


class PointRobot(Robot):
    """Steps the environment at each action."""

    config_class, name = PointRobotConfig, "point"
    is_calibrated, is_connected = True, False

    def __init__(self, config):
        super().__init__(config)
        self._record, self._env = Path(config.record), StatePoint()
        self._seen, self._done = [], []

    @property
    def observation_features(self):
        return {f"s{i}.pos": float for i in range(STATE_DIM)}

    @property
    def action_features(self):
        return {f"a{i}.pos": float for i in range(ACTION_DIM)}

    def connect(self, calibrate=True):
        self.is_connected = True
        self._state = self._env.reset(options={"init_state_id": 0})[0][STATE]

    def get_observation(self):
        return {f"s{i}.pos": float(value) for i, value in enumerate(self._state)}

    def send_action(self, action):
        values = [action[f"a{i}.pos"] for i in range(ACTION_DIM)]
        self._seen.append(self._state.tolist())
        self._done.append(values)
        self._state = self._env.step(np.float32(values))[0][STATE]
        return action

    def disconnect(self):
        self.is_connected = False
        self._record.write_text(json.dumps({"states": self._seen, "actions": self._done}))

    def calibrate(self):
        pass

    def configure(self):
        pass
