"""Builds the simulation of one task: LIBERO's `ControlEnv` with soft resets and no downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs import assets, bootstrap, pld_tabletop
from envs.entities import LAYOUTS, EntityReader
from envs.observations import ENVIRONMENT_STATE_DIM, SceneReader
from envs.seeding import global_numpy_seed
from envs.suites import TaskSpec

ACTION_DIM = 7
CONTROL_MODES = ("relative", "absolute")
_LEROBOT_LOADS = 3
Step = Callable[..., bool]


def build_control_env(spec: TaskSpec, renders: bool, assets_folder: str | Path | None) -> Any:
    """LIBERO's `ControlEnv` for `spec`; its first placement is arbitrary.

    Args:
        spec: the task.
        renders: whether an off-screen renderer is wanted.
        assets_folder: see `envs.assets.resolve_assets`; `pld_tabletop` needs none.

    Raises:
        AssetsIncompleteError: a file of LIBERO's assets is missing.
    """
    bootstrap.import_libero()
    from libero.libero.envs.env_wrapper import ControlEnv

    folder = None
    if spec.suite == pld_tabletop.SUITE:
        pld_tabletop.register()
    else:
        folder = assets.resolve_assets(spec.suite, assets_folder)
        bootstrap.use_assets(folder)
    try:
        with global_numpy_seed(np.random.default_rng(0)):
            control_env = ControlEnv(
                bddl_file_name=str(spec.bddl_file),
                has_renderer=False,
                has_offscreen_renderer=renders,
                use_camera_obs=False,
                ignore_done=True,
                hard_reset=False,
            )
    except (OSError, ValueError) as error:  # MuJoCo reports an absent mesh as a ValueError
        missing = folder and assets.missing_on_load(spec.suite, folder, error)
        if missing:
            raise missing from error
        raise
    # LIBERO appends its samplers of drawer and knob positions again each time that it loads the
    # model, and each draws a random number before the fixtures are placed. LeRobot's environment
    # has loaded it three times when its first episode starts, and once more per later episode.
    control_env.env.object_property_initializers *= _LEROBOT_LOADS
    return control_env


class SoftReset:
    """Resets a simulation without loading it again, and leaves nothing of the episode before.

    LIBERO places things in a drawer or on a stove relative to where the fixture was before the
    reset moved it, which is right only straight after loading the model: the fixtures go back there
    first. The gripper's last command outlives a soft reset, too.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._model = env, env.sim.model._model
        bodies = {body.get("name"): body for body in env.model.worldbody.iter("body")}
        self._loaded_poses = [
            (
                env.sim.model.body_name2id(fixture.root_body),
                _numbers(bodies[fixture.root_body].get("pos", "0 0 0")),
                _numbers(bodies[fixture.root_body].get("quat", "1 0 0 0")),
            )
            for fixture in env.fixtures_dict.values()
            if fixture.root_body in bodies
        ]

    def __call__(self) -> bool:
        """Reset with a placement drawn from numpy's global generator; False when none is free."""
        from robosuite.utils.errors import RandomizationError

        for body, position, quaternion in self._loaded_poses:
            self._model.body_pos[body] = position
            self._model.body_quat[body] = quaternion
        gripper = self._env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)
        try:
            self._env.reset()
        except RandomizationError:
            return False
        return True


def _numbers(text: str) -> np.ndarray:
    return np.array([float(word) for word in text.split()])


def make_reader(env: Any, spec: TaskSpec) -> SceneReader | EntityReader:
    """What turns the simulation of `spec` into state observations."""
    if spec.suite == pld_tabletop.SUITE:
        target, goal = env.parsed_problem["obj_of_interest"]
        return SceneReader(env, target, goal, spec.index)
    return EntityReader(env, LAYOUTS[spec.suite], spec.index)


def make_step(env: Any, fast: bool) -> Step:
    """`FastStep`, or robosuite's own step behind the same call."""
    if fast:
        from envs.fast_step import FastStep

        return FastStep(env)
    from envs.stock_step import StockStep

    return StockStep(env)


def action_space(control_mode: str) -> spaces.Box:
    """Bounds [7] of an action; a pose to go to is bounded beyond the arm's reach."""
    if control_mode == "relative":
        return spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
    high = np.array([2.0] * 3 + [2 * np.pi] * 3 + [1.0], np.float32)
    return spaces.Box(-high, high, dtype=np.float32)


def environment_state_dim(suite: str) -> int:
    """Length of "observation.environment_state" in `suite`."""
    return ENVIRONMENT_STATE_DIM if suite == pld_tabletop.SUITE else LAYOUTS[suite].size
