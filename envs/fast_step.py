"""LIBERO's environment step with the same physics, bit for bit, at a fraction of the cost.

For each of the 25 substeps of 2 ms of a control step, robosuite computes the forward dynamics
three times (before control, inside the controller and in `mj_step`) and looks every quantity of
the controller up by name. Here `mj_step1 -> controller -> mj_step2` computes them once, and the
controller (`envs.osc`) reads the simulation through indices and preallocated arrays.
"""

# ruff: noqa: E402  mujoco opens graphics libraries unless the bootstrap imports it
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.bootstrap import import_libero

import_libero()

import mujoco

from envs import osc

_ARM_JOINTS = 7


class FastStep:
    """Steps a robosuite environment with one Panda under OSC_POSE control of fixed impedance.

    Sensors are switched off in the model: nothing of LIBERO reads them, and force sensors cost an
    inverse-dynamics pass in each substep. They do not influence the motion.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`. It must use soft resets.

    Raises:
        ValueError: the robot has another controller or gripper than described.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._robot = env.robots[0]
        self._check_supported()
        self._model = model = env.sim.model._model
        self._data = data = env.sim.data._data
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        self._substeps = int(env.control_timestep / env.model_timestep)

        # Views into the simulation, valid as long as its mjData lives (soft resets keep it).
        controller = self._robot.controller
        self._site = env.sim.model.site_name2id(controller.eef_name)
        self._ee_pos = data.site_xpos[self._site]
        self._ee_ori = data.site_xmat[self._site].reshape(3, 3)
        self._qpos, self._qvel, self._ctrl = data.qpos, data.qvel, data.ctrl
        self._inertia, self._bias_force = data.qM, data.qfrc_bias
        self._arm_qpos = np.array(controller.qpos_index)
        self._arm_dofs = np.array(controller.qvel_index)
        self._arm_actuators = np.array(self._robot._ref_joint_actuator_indexes)
        self._torque_limits = np.stack(self._robot.torque_limits)

        # Work space of the controller; the memory orders matter, see `envs.osc`.
        self._jacobian_pos = np.zeros((3, model.nv))
        self._jacobian_ori = np.zeros((3, model.nv))
        self._mass_all = np.zeros((model.nv, model.nv))
        self._j_pos = np.zeros((3, _ARM_JOINTS), order="F")
        self._j_ori = np.zeros((3, _ARM_JOINTS), order="F")
        self._j_full = np.zeros((6, _ARM_JOINTS), order="F")
        self._mass = np.zeros((_ARM_JOINTS, _ARM_JOINTS), order="F")
        self._force, self._torque = np.zeros(3), np.zeros(3)
        self._wrench = np.zeros(6)

        self._fingers = [int(index) for index in self._robot._ref_joint_gripper_actuator_indexes]
        ctrl_range = model.actuator_ctrlrange[self._fingers]
        self._finger_bias = (0.5 * (ctrl_range[:, 1] + ctrl_range[:, 0])).tolist()
        self._finger_weight = (0.5 * (ctrl_range[:, 1] - ctrl_range[:, 0])).tolist()

    def __call__(
        self, action: np.ndarray, observe: Callable[[], None] | None = None, substep: int = -1
    ) -> bool:
        """Advance one control period under `action` [7] float64; answer whether the task is done.

        robosuite's observables are not updated: `observe` is called after the substep numbered
        `substep` (of 25; -1 is the last) and reads what it wants from the simulation.
        """
        env, model, data, controller = self._env, self._model, self._data, self._robot.controller
        env.timestep += 1
        fingers = np.broadcast_to(self._robot.gripper.current_action, 2).tolist()
        closing = float(np.sign(action[6])) * self._robot.gripper.speed
        observed = substep % self._substeps
        for number in range(self._substeps):
            mujoco.mj_step1(model, data)
            if number == 0:
                self._set_goal(controller, action[:6])
            self._command_arm(controller)
            fingers = [_clip(fingers[0] - closing), _clip(fingers[1] + closing)]
            for i, actuator in enumerate(self._fingers):
                self._ctrl[actuator] = self._finger_bias[i] + self._finger_weight[i] * fingers[i]
            mujoco.mj_step2(model, data)
            if observe is not None and number == observed:
                observe()
        self._robot.gripper.current_action = np.array(fingers)
        env.cur_time += env.control_timestep
        env._post_process()
        return bool(env._check_success())

    def _set_goal(self, controller: Any, arm_action: np.ndarray) -> None:
        controller.ee_pos = self._ee_pos.copy()
        controller.ee_ori_mat = self._ee_ori.copy()
        controller.new_update = False  # what it needs is set above: no forward pass
        controller.set_goal(arm_action)
        controller.new_update = True
        self._goal_pos = np.array(controller.goal_pos, dtype=np.float64)
        self._goal_ori = np.array(controller.goal_ori, dtype=np.float64, order="C")

    def _command_arm(self, controller: Any) -> None:
        """Torques toward the goal pose, written to the actuators."""
        model, data = self._model, self._data
        mujoco.mj_jacSite(model, data, self._jacobian_pos, self._jacobian_ori, self._site)
        mujoco.mj_fullM(model, self._mass_all, self._inertia)
        osc.copy_arm(
            self._jacobian_pos,
            self._jacobian_ori,
            self._mass_all,
            self._arm_dofs,
            self._j_pos,
            self._j_ori,
            self._j_full,
            self._mass,
        )
        osc.goal_wrench(
            self._goal_pos,
            self._goal_ori,
            self._ee_pos,
            self._ee_ori,
            np.dot(self._jacobian_pos, self._qvel),
            np.dot(self._jacobian_ori, self._qvel),
            controller.kp,
            controller.kd,
            self._force,
            self._torque,
        )
        lambda_pos, lambda_ori, nullspace = osc.task_space_inertia(
            self._mass, self._j_full, self._j_pos, self._j_ori
        )
        self._wrench[:3] = np.dot(lambda_pos, self._force)
        self._wrench[3:] = np.dot(lambda_ori, self._torque)
        osc.command_arm(
            np.dot(self._j_full.T, self._wrench),
            self._bias_force,
            self._mass,
            nullspace,
            controller.initial_joint,
            self._qpos,
            self._qvel,
            self._arm_qpos,
            self._arm_dofs,
            self._torque_limits,
            self._arm_actuators,
            self._ctrl,
        )

    def _check_supported(self) -> None:
        controller = self._robot.controller
        unsupported = [
            len(self._env.robots) != 1 and "several robots",
            len(controller.qpos_index) != _ARM_JOINTS and "an arm of other than 7 joints",
            controller.name != "OSC_POSE" and f"controller {controller.name}",
            getattr(controller, "impedance_mode", "fixed") != "fixed" and "variable impedance",
            not getattr(controller, "uncoupling", True) and "coupled position and orientation",
            getattr(controller, "interpolator_pos", None) is not None and "interpolation",
            getattr(controller, "interpolator_ori", None) is not None and "interpolation",
            type(self._robot.gripper).__name__ != "PandaGripper" and "another gripper",
            self._env.hard_reset and "hard resets",
        ]
        reasons = [reason for reason in unsupported if reason]
        if reasons:
            raise ValueError(f"fast_step does not cover {', '.join(reasons)}: use fast_step=False.")


def _clip(value: float) -> float:
    return min(max(value, -1.0), 1.0)
