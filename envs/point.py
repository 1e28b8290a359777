"""A point that has to reach a goal: LIBERO's spaces without a simulator.

For benchmarks and fault tests, where what matters is the machinery around the environment. A step
takes as long as it is told to.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

from envs.observations import ENVIRONMENT_STATE, ENVIRONMENT_STATE_DIM, STATE, STATE_DIM

ACTION_DIM = 7
STEP_LENGTH = 0.05
REACHED = 0.05
NUM_INIT_STATES = 150


class PointHelper:
    """Walks straight to the goal from wherever the point is."""

    def __init__(self, env: PointEnv) -> None:
        self._env = env

    def act(self) -> np.ndarray:
        """The action [7] float32 for the present state."""
        action = np.zeros(ACTION_DIM, np.float32)
        action[:3] = np.clip(self._env.way_to_go() / STEP_LENGTH, -1.0, 1.0)
        return action

    def remaining(self) -> float:
        """Distance to the goal."""
        return float(np.linalg.norm(self._env.way_to_go()))


class PointEnv(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A point in a cube moves by 0.05 times the first three action components.

    Observations: "observation.state" [8] (the position, then zeros) and
    "observation.environment_state" [24] (the goal minus the position, then zeros), float32. The
    reward is 1 in the step that comes within 0.05 of the goal, which terminates the episode.

    Args:
        episode_length: steps until truncation.
        step_s: seconds that a step sleeps.
        side: of the cube in which start and goal are drawn, in (0, 1]; in a small one chance finds
            the goal often enough to learn from.
    """

    metadata = {"render_modes": [], "render_fps": 20}

    def __init__(self, episode_length: int = 50, step_s: float = 0.0, side: float = 1.0) -> None:
        self.episode_length = episode_length
        self.step_s = step_s
        self.side = side
        self.observation_space = gym.spaces.Dict(
            {
                STATE: gym.spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32),
                ENVIRONMENT_STATE: gym.spaces.Box(
                    -np.inf, np.inf, (ENVIRONMENT_STATE_DIM,), np.float32
                ),
            }
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        self._position: Any = np.zeros(3)
        self._goal: Any = np.zeros(3)
        self._steps = 0
        self._init_state_id = -1

    @property
    def num_init_states(self) -> int:
        """How many start states there are."""
        return NUM_INIT_STATES

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._init_state_id = int((options or {}).get("init_state_id", -1))
        stored = self._init_state_id >= 0
        rng = np.random.default_rng(self._init_state_id) if stored else self.np_random
        self._position, self._goal = self.side * rng.uniform(size=(2, 3))
        self._steps = 0
        return self._observation(), self._info(False)

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if self.step_s:
            time.sleep(self.step_s)  # the simulation whose cost this environment stands for
        self._position = self._position + STEP_LENGTH * np.asarray(action[:3], dtype=np.float64)
        self._steps += 1
        reached = bool(np.linalg.norm(self._goal - self._position) < REACHED)
        truncated = self._steps >= self.episode_length
        return self._observation(), float(reached), reached, truncated, self._info(reached)

    def helper(self) -> PointHelper:
        """Who helps where a policy gets stuck."""
        return PointHelper(self)

    def way_to_go(self) -> np.ndarray:
        """From the point to the goal, [3]."""
        return self._goal - self._position

    def _observation(self) -> dict[str, np.ndarray]:
        state = np.zeros(STATE_DIM, np.float32)
        state[:3] = self._position
        environment_state = np.zeros(ENVIRONMENT_STATE_DIM, np.float32)
        environment_state[:3] = self._goal - self._position
        return {STATE: state, ENVIRONMENT_STATE: environment_state}

    def _info(self, is_success: bool) -> dict[str, Any]:
        return {
            "is_success": is_success,
            "task": "reach the goal",
            "task_id": 0,
            "init_state_id": self._init_state_id,
        }
