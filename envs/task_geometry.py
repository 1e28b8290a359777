"""What a scripted expert may know of a task: who goes where, and how big it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from envs import pld_tabletop
from envs.entities import EntityReader
from envs.observations import SceneReader
from envs.suites import TaskSpec


class TaskGeometry:
    """The first thing of interest is the target and the last one the goal.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
        spec: its task.
        scene: reads the simulation.
        stored_states: gives the task's stored init states [N, 1 + nq + nv].
    """

    def __init__(
        self,
        env: Any,
        spec: TaskSpec,
        scene: SceneReader | EntityReader,
        stored_states: Callable[[], np.ndarray],
    ) -> None:
        self._env, self._spec, self._scene = env, spec, scene
        self._stored_states = stored_states
        problem = env.parsed_problem
        self._target, self._goal = problem["obj_of_interest"][0], problem["obj_of_interest"][-1]
        self._lift_only = problem["goal_state"][0][0].lower() == "up"

    def view(self) -> dict[str, Any]:
        """See `LiberoEnv.expert_view`."""
        scene = self._scene
        return {
            "target": self._target,
            "goal": self._goal,
            "eef_pos": scene.eef_pos.copy(),
            "eef_quat": scene.eef_quat.copy(),
            "target_pos": scene.target_pos.copy(),
            "target_quat": scene.target_quat.copy(),
            "goal_pos": scene.goal_pos.copy(),
            "gripper_qpos": scene.gripper_qpos.copy(),
            "target_top": self._target_top,
            "region_center": self._region_center.copy(),
            "lift_only": self._lift_only,
        }

    @functools.cached_property
    def _target_top(self) -> float:
        """Height of the target's top over its body's origin, as it stands now, metres."""
        thing = self._env.get_object(self._target)
        if self._spec.suite == pld_tabletop.SUITE:
            return float(thing.top_offset[2])
        # LIBERO's own offsets are rough: a block of butter is said to be as tall as a can.
        if self._target not in self._env.obj_body_id:
            return 0.0
        return highest_point(self._env, self._target) - float(self._scene.target_pos[2])

    @functools.cached_property
    def _region_center(self) -> np.ndarray:
        """Middle [2] of the places where the target starts."""
        problem = self._env.parsed_problem
        if self._spec.suite == pld_tabletop.SUITE:
            x_low, y_low, x_high, y_high = problem["regions"]["main_table_target_region"]["ranges"][
                0
            ]
            return np.array([(x_low + x_high) / 2, (y_low + y_high) / 2])
        if self._target not in self._env.objects_dict:
            return self._scene.target_pos[:2].copy()
        joint = self._env.objects_dict[self._target].joints[-1]
        column = 1 + self._env.sim.model.get_joint_qpos_addr(joint)[0]
        return self._stored_states()[:, column : column + 2].mean(axis=0)


def highest_point(env: Any, name: str) -> float:
    """World height of the top of the collision boxes around the body `name`, metres."""
    model, data = env.sim.model._model, env.sim.data._data
    root = env.obj_body_id[name]
    heights = [
        (data.geom_xpos[geom] + rotation @ model.geom_aabb[geom, :3])[2]
        + np.abs(rotation[2]) @ model.geom_aabb[geom, 3:]
        for geom in range(model.ngeom)
        if model.geom_contype[geom] and _belongs(model, model.geom_bodyid[geom], root)
        for rotation in [data.geom_xmat[geom].reshape(3, 3)]
    ]
    return float(max(heights))


def _belongs(model: Any, body: int, root: int) -> bool:
    while body not in (0, root):
        body = model.body_parentid[body]
    return bool(body == root)
