"""What a policy sees of the simulation: LeRobot's robot state and our environment state."""

from __future__ import annotations

from typing import Any

import numpy as np

STATE_DIM = 8
ENVIRONMENT_STATE_DIM = 24
NUM_TASK_SLOTS = 5
FINE_SCALE = 40.0  # 1/metre: tanh(40 x) tells millimetres apart near zero and saturates at 5 cm

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGES = "observation.images."


def axis_angle(quat_wxyz: np.ndarray) -> np.ndarray:
    """Rotation vector [3] of a unit quaternion, angle in [0, 2 pi], as LeRobot's LIBERO processor.

    A rotation by nearly nothing is the zero vector.
    """
    w = min(1.0, max(-1.0, float(quat_wxyz[0])))
    sine = np.sqrt(1.0 - w * w)
    if sine <= 1e-10:
        return np.zeros(3)
    return quat_wxyz[1:] / sine * (2.0 * np.arccos(w))


class RobotReader:
    """Where the robot is, as live views of the simulation's arrays (world frame, metres).

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
    """

    def __init__(self, env: Any) -> None:
        data, robot = env.sim.data._data, env.robots[0]
        hand = env.sim.model.body_name2id(robot.robot_model.eef_name)
        fingers = robot._ref_gripper_joint_pos_indexes
        self._fingers = slice(fingers[0], fingers[-1] + 1)
        self._qpos = data.qpos
        self.eef_pos = data.site_xpos[robot.eef_site_id]
        self.eef_quat = data.xquat[hand]  # wxyz

    @property
    def gripper_qpos(self) -> np.ndarray:
        """Positions [2] of the two fingers, metres: (0.04, -0.04) open, (0, 0) closed."""
        return self._qpos[self._fingers]


class SceneReader(RobotReader):
    """State and environment state of `pld_tabletop`.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
        target: name of the object to be moved.
        goal: name of the object to move it to.
        task_index: the task's number, for the one-hot part of the environment state.
    """

    def __init__(self, env: Any, target: str, goal: str, task_index: int) -> None:
        super().__init__(env)
        data = env.sim.data._data
        self.target_pos = data.xpos[env.obj_body_id[target]]
        self.target_quat = data.xquat[env.obj_body_id[target]]
        self.goal_pos = data.xpos[env.obj_body_id[goal]]
        self._task = np.zeros(NUM_TASK_SLOTS)
        self._task[task_index] = 1.0

    def state(self) -> np.ndarray:
        """[8] float32: end-effector position 3 (m), its axis-angle 3 (rad), fingers 2 (m)."""
        state = np.empty(STATE_DIM, np.float32)
        state[0:3] = self.eef_pos
        state[3:6] = axis_angle(self.eef_quat)
        state[6:8] = self._qpos[self._fingers]
        return state

    def environment_state(self) -> np.ndarray:
        """[24] float32, positions in metres.

        target-eef 3, tanh(40 (target-eef)) 3, target quaternion wxyz with w >= 0 4, goal-eef 3,
        goal-target 3, target position 3, one-hot task 5.
        """
        reach = self.target_pos - self.eef_pos
        quat = self.target_quat
        state = np.empty(ENVIRONMENT_STATE_DIM, np.float32)
        state[0:3] = reach
        state[3:6] = np.tanh(FINE_SCALE * reach)
        state[6:10] = quat if quat[0] >= 0 else -quat
        state[10:13] = self.goal_pos - self.eef_pos
        state[13:16] = self.goal_pos - self.target_pos
        state[16:19] = self.target_pos
        state[19:24] = self._task
        return state
