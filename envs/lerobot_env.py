"""The suites as an environment type of LeRobot's: `lerobot-eval --env.type=pld_ray`.

LeRobot imports this through the distribution `lerobot_env_pld_ray`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.envs.utils import _LazyAsyncVectorEnv, freeze_after_episode_end
from lerobot.utils.constants import ACTION

from envs.libero import LiberoEnv
from envs.observations import ENVIRONMENT_STATE, IMAGES, STATE
from envs.pld_tabletop import SUITE
from envs.suites import default_task, suite_tasks

BLANK = np.zeros((64, 64, 3), np.uint8)
"""What is filmed of an environment that does not render."""
LEROBOT_KEYS = {STATE: "agent_pos", ENVIRONMENT_STATE: "environment_state"}
"""Our observation -> the environment's key that LeRobot makes it of."""
ALL_TASKS = "all"


@EnvConfig.register_subclass("pld_ray")
@dataclass
class PldRayEnv(EnvConfig):
    """Tasks of a suite, from their stored init states in order, as `pld-ray eval` plays them.

    Args:
        suite: see `envs.suites.suite_names`.
        task: name or number; several with commas; `all`; None is the suite's default.
        init_states: sub-environment i of n starts from the stored states first_init_state + i,
            + i + n, ... (after the last one the first again), whatever the seed; False samples
            placements by LeRobot's seeds.
        first_init_state: see `init_states`.
        render: LeRobot films the first episodes; without an OpenGL library, or for speed, False
            leaves the films blank.
        cameras, image_size, episode_length, assets, rendering, control_mode, environment_state: see
            `LiberoEnv`.
    """

    task: str | None = None
    fps: int = 20
    suite: str = SUITE
    cameras: list[str] = field(default_factory=list)
    image_size: int = 128
    episode_length: int | None = None
    init_states: bool = True
    first_init_state: int = 0
    render: bool = True
    assets: str | None = None
    rendering: str = "reference"
    control_mode: str = "relative"
    environment_state: bool = True

    def __post_init__(self) -> None:
        env = LiberoEnv(self.suite, self.tasks[0], **{**self.gym_kwargs, "render_mode": None})
        kinds = {STATE: FeatureType.STATE, ENVIRONMENT_STATE: FeatureType.ENV}
        self.features = {ACTION: PolicyFeature(FeatureType.ACTION, env.action_space.shape or ())}
        self.features_map = {ACTION: ACTION}
        for name, space in env.observation_space.spaces.items():  # type: ignore[attr-defined]
            key = LEROBOT_KEYS.get(name, f"pixels/{name.removeprefix(IMAGES)}")
            self.features[key] = PolicyFeature(kinds.get(name, FeatureType.VISUAL), space.shape)
            self.features_map[key] = name

    @property
    def tasks(self) -> list[str]:
        """The tasks that are played."""
        if self.task == ALL_TASKS:
            return suite_tasks(self.suite)
        return (self.task or default_task(self.suite)).split(",")

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """The arguments of `LiberoEnv` beside suite and task."""
        return {
            "cameras": list(self.cameras),
            "image_size": self.image_size,
            "episode_length": self.episode_length,
            "render_mode": "rgb_array" if self.render else None,
            "assets": self.assets,
            "rendering": self.rendering,
            "control_mode": self.control_mode,
            "environment_state": self.environment_state,
        }

    def create_envs(
        self, n_envs: int, use_async_envs: bool = False
    ) -> dict[str, dict[int, gym.vector.VectorEnv]]:
        """Suite -> number of the task -> `n_envs` environments."""
        made: dict[int, Any] = {}
        for task in self.tasks:
            makers = [functools.partial(self._make, task, i, n_envs) for i in range(n_envs)]
            task_id = LiberoEnv(self.suite, task).task_id
            if use_async_envs and n_envs > 1:
                made[task_id] = _LazyAsyncVectorEnv(makers)
            else:
                made[task_id] = gym.vector.SyncVectorEnv(
                    [freeze_after_episode_end(make) for make in makers],
                    autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
                )
        return {self.suite: made}

    def _make(self, task: str, index: int, stride: int) -> LeRobotView:
        env = LiberoEnv(self.suite, task, **self.gym_kwargs)
        first = self.first_init_state + index if self.init_states else None
        return LeRobotView(env, first, stride)


class LeRobotView(gym.Wrapper):
    """`LiberoEnv` with the keys and attributes that LeRobot's evaluation reads.

    Args:
        env: the environment.
        first_init_state: of the first episode; None samples each by the seed of its reset.
        stride: to the init state of the next episode.
    """

    def __init__(self, env: LiberoEnv, first_init_state: int | None, stride: int) -> None:
        super().__init__(env)
        self._libero, self._next, self._stride = env, first_init_state, stride
        self.task, self.task_description = env.task_name, env.task_description
        self._max_episode_steps = env.episode_length
        self.observation_space = _renamed(env.observation_space, spaces.Dict)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next init state; LeRobot's seed and options matter to sampled placements alone."""
        if self._next is None:
            observation, info = self._libero.reset(seed=seed)
        else:
            state = self._next % self._libero.num_init_states
            observation, info = self._libero.reset(options={"init_state_id": state})
            self._next += self._stride
        return _renamed(observation), info

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """One control period; the action is clipped to its bounds."""
        bounds: Any = self.action_space
        command = np.clip(action, bounds.low, bounds.high)
        observation, reward, terminated, truncated, info = self._libero.step(command)
        return _renamed(observation), reward, terminated, truncated, info

    def render(self) -> Any:
        """A picture [H, W, 3] uint8; a blank one without `render_mode`."""
        return BLANK if self._libero.render_mode is None else self._libero.render()


def _renamed(given: Any, made: Any = dict) -> Any:
    """Observations, or their spaces, as LeRobot's environments name them."""
    named = {LEROBOT_KEYS[key]: given[key] for key in given if key in LEROBOT_KEYS}
    pixels = {key.removeprefix(IMAGES): given[key] for key in given if key.startswith(IMAGES)}
    return made({**named, "pixels": made(pixels)} if pixels else named)
