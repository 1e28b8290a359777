"""The environment state of LIBERO's suites: the objects, fixtures and places that a task names.

A BDDL file lists its `obj_of_interest`: between one and four names of objects, fixtures or sites
(a drawer, a burner, a marked place). Each suite has as many slots as its richest task needs, so
that all of its tasks share one size and one policy can serve them all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from envs.observations import FINE_SCALE, STATE_DIM, RobotReader

PER_ENTITY = 10
_JOINT_PREDICATES = ("open", "close", "turnon", "turnoff")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sizes of a suite's environment state.

    Attributes:
        entities: slots for named things; a task with fewer leaves the last ones zero.
        joints: slots for the joints (drawer, door, knob) which the goal speaks of.
        tasks: length of the one-hot task number.
    """

    entities: int
    joints: int
    tasks: int

    @property
    def size(self) -> int:
        """Numbers in all."""
        return PER_ENTITY * self.entities + 3 * self.entities + self.joints + self.tasks


LAYOUTS = {
    "libero_spatial": Layout(entities=2, joints=0, tasks=10),
    "libero_object": Layout(entities=2, joints=0, tasks=10),
    "libero_goal": Layout(entities=2, joints=1, tasks=10),
    "libero_10": Layout(entities=4, joints=1, tasks=10),
    "libero_90": Layout(entities=3, joints=2, tasks=90),
}


class EntityReader(RobotReader):
    """Reads robot and named things straight from the simulation's arrays.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
        layout: the suite's.
        task_index: the task's number, for the one-hot part.
    """

    def __init__(self, env: Any, layout: Layout, task_index: int) -> None:
        super().__init__(env)
        self._layout = layout
        problem = env.parsed_problem
        self._entities = [_pose_views(env, name) for name in problem["obj_of_interest"]]
        self._joints = _goal_joints(env, problem["goal_state"])
        if len(self._entities) > layout.entities or len(self._joints) > layout.joints:
            raise ValueError(
                f"{env.bddl_file_name} names {len(self._entities)} things and "
                f"{len(self._joints)} joints where its suite has room for {layout}."
            )
        self._task = np.zeros(layout.tasks)
        self._task[task_index] = 1.0
        self.target_pos = self._entities[0].pos  # live views, world frame, metres
        self.goal_pos = self._entities[-1].pos

    @property
    def target_quat(self) -> np.ndarray:
        """Quaternion wxyz [4] of the first named thing."""
        return self._entities[0].quat()

    def state(self) -> np.ndarray:
        """[8] float32: end-effector position 3 (m), its axis-angle 3 (rad), fingers 2 (m).

        The angle is computed in single precision by torch, as LeRobot's processor does: near a
        half turn its last digits differ from an exact one.
        """
        state = np.empty(STATE_DIM, np.float32)
        state[0:3] = self.eef_pos
        state[3:6] = single_precision_axis_angle(self.eef_quat)
        state[6:8] = self.gripper_qpos
        return state

    def environment_state(self) -> np.ndarray:
        """[layout.size] float32, positions in metres.

        For each entity slot: entity-eef 3, tanh(40 (entity-eef)) 3, quaternion wxyz with w >= 0 4.
        Then: the first entity's position 3, entity-first for each further slot 3, the goal's joint
        positions (rad or m), one-hot task. Slots without an entity are zero.
        """
        slots = self._layout.entities
        state = np.zeros(self._layout.size, np.float32)
        first = self._entities[0].pos
        offsets = state[PER_ENTITY * slots :]
        offsets[0:3] = first
        for i, entity in enumerate(self._entities):
            reach = entity.pos - self.eef_pos
            quat = entity.quat()
            slot = state[PER_ENTITY * i :]
            slot[0:3] = reach
            slot[3:6] = np.tanh(FINE_SCALE * reach)
            slot[6:10] = quat if quat[0] >= 0 else -quat
            if i > 0:
                offsets[3 * i : 3 * i + 3] = entity.pos - first
        rest = offsets[3 * slots :]
        for i, address in enumerate(self._joints):
            rest[i] = self._qpos[address]
        rest[self._layout.joints :] = self._task
        return state


def single_precision_axis_angle(quat_wxyz: np.ndarray) -> np.ndarray:
    """Rotation vector [3] float32 of a unit quaternion with the digits of LeRobot's processor."""
    import torch

    quat = torch.from_numpy(np.asarray(quat_wxyz, np.float32)).unsqueeze(0)
    w = quat[:, 0].clamp(-1.0, 1.0)
    sine = torch.sqrt(torch.clamp(1.0 - w * w, min=0.0))
    if sine.item() <= 1e-10:
        return np.zeros(3, np.float32)
    rotation: np.ndarray = (quat[:, 1:] / sine * (2.0 * torch.acos(w))).numpy()[0]
    return rotation


class _BodyPose:
    def __init__(self, env: Any, body: int) -> None:
        data = env.sim.data._data
        self.pos = data.xpos[body]
        self._quat = data.xquat[body]

    def quat(self) -> np.ndarray:
        return self._quat


class _SitePose:
    def __init__(self, env: Any, site: int) -> None:
        import mujoco  # opens graphics libraries unless LIBERO was bootstrapped first

        data = env.sim.data._data
        self.pos = data.site_xpos[site]
        self._matrix = data.site_xmat[site]
        self._quat = np.empty(4)
        self._to_quat = mujoco.mju_mat2Quat

    def quat(self) -> np.ndarray:
        self._to_quat(self._quat, self._matrix)
        return self._quat


def _pose_views(env: Any, name: str) -> _BodyPose | _SitePose:
    if name in env.obj_body_id:
        return _BodyPose(env, env.obj_body_id[name])
    return _SitePose(env, env.sim.model.site_name2id(name))


def _goal_joints(env: Any, goal_state: list[list[str]]) -> list[int]:
    """Addresses in qpos of the first joint of each thing that is to be opened or switched."""
    names = [literal[1] for literal in goal_state if literal[0].lower() in _JOINT_PREDICATES]
    return [env.sim.model.get_joint_qpos_addr(env.get_object(name).joints[0]) for name in names]
