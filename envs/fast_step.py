"""LIBERO's environment step with the same physics, bit for bit, at a fraction of the cost.

For each of the 25 substeps of 2 ms of a control step, robosuite computes the forward dynamics
three times (before control, inside the controller and in `mj_step`) and looks every quantity of
the controller up by name. Here `mj_step1 -> controller -> mj_step2` computes them once, and the
operational-space controller reads the simulation through indices and preallocated arrays. The
arithmetic, its order and the memory layout of each operand are those of robosuite's
`OperationalSpaceController.run_controller`, because a product summed in another order would differ
in the last bit.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np


class FastStep:
    """Steps a robosuite environment with one Panda under OSC_POSE control of fixed impedance.

    Sensors are switched off in the model: nothing of LIBERO reads them, and force sensors cost an
    inverse-dynamics pass in each substep. They do not influence the motion.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.

    Raises:
        ValueError: the robot has another controller or gripper than described.
    """

    def __init__(self, env: Any) -> None:
        from robosuite.utils import control_utils

        self._opspace_matrices = control_utils.opspace_matrices
        self._nullspace_torques = control_utils.nullspace_torques
        self._orientation_error = control_utils.orientation_error
        self._env = env
        self._robot = env.robots[0]
        self._check_supported()
        self._model = model = env.sim.model._model
        self._data = data = env.sim.data._data
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        self._substeps = int(env.control_timestep / env.model_timestep)

        # Views into the simulation, valid as long as its mjData lives (soft resets keep it).
        controller, gripper = self._robot.controller, self._robot.gripper
        self._site = env.sim.model.site_name2id(controller.eef_name)
        self._ee_pos = data.site_xpos[self._site]
        self._ee_ori = data.site_xmat[self._site].reshape(3, 3)
        self._qpos, self._qvel, self._ctrl = data.qpos, data.qvel, data.ctrl
        self._bias_force = data.qfrc_bias
        self._qpos_index = np.array(controller.qpos_index)
        self._qvel_index = np.array(controller.qvel_index)
        self._arm_actuators = np.array(self._robot._ref_joint_actuator_indexes)
        self._torque_low, self._torque_high = self._robot.torque_limits

        self._jacobian_pos = np.zeros((3, model.nv))
        self._jacobian_ori = np.zeros((3, model.nv))
        self._mass = np.zeros((model.nv, model.nv))

        self._gripper_actuators = self._robot._ref_joint_gripper_actuator_indexes
        ctrl_range = model.actuator_ctrlrange[self._gripper_actuators]
        self._grip_bias = 0.5 * (ctrl_range[:, 1] + ctrl_range[:, 0])
        self._grip_weight = 0.5 * (ctrl_range[:, 1] - ctrl_range[:, 0])
        self._grip_speed = gripper.speed

    def __call__(self, action: np.ndarray) -> bool:
        """Advance one control period under `action` [7] float64; answer whether the task is done.

        Observables are not updated: read the state from the simulation.
        """
        env, model, data = self._env, self._model, self._data
        controller, gripper = self._robot.controller, self._robot.gripper
        env.timestep += 1
        closing = np.array([-1.0, 1.0]) * self._grip_speed * np.sign(action[6:])
        opening = gripper.current_action
        for substep in range(self._substeps):
            mujoco.mj_step1(model, data)
            if substep == 0:
                self._set_goal(controller, action[:6])
            torques = self._torques(controller)
            opening = np.minimum(np.maximum(opening + closing, -1.0), 1.0)
            self._ctrl[self._gripper_actuators] = self._grip_bias + self._grip_weight * opening
            self._ctrl[self._arm_actuators] = np.minimum(
                np.maximum(torques, self._torque_low), self._torque_high
            )
            mujoco.mj_step2(model, data)
        gripper.current_action = opening
        env.cur_time += env.control_timestep
        env._post_process()
        return bool(env._check_success())

    def _set_goal(self, controller: Any, arm_action: np.ndarray) -> None:
        controller.ee_pos = self._ee_pos.copy()
        controller.ee_ori_mat = self._ee_ori.copy()
        controller.new_update = False  # the state is current: no forward pass
        controller.set_goal(arm_action)
        controller.new_update = True
        self._goal_pos = np.array(controller.goal_pos)
        self._goal_ori = np.array(controller.goal_ori)

    def _torques(self, controller: Any) -> np.ndarray:
        """Joint torques [7] toward the goal pose, before clipping; see Khatib (1987)."""
        kp, kd = controller.kp, controller.kd
        mujoco.mj_jacSite(
            self._model, self._data, self._jacobian_pos, self._jacobian_ori, self._site
        )
        velocity_pos = np.dot(self._jacobian_pos, self._qvel)
        velocity_ori = np.dot(self._jacobian_ori, self._qvel)
        j_pos = self._jacobian_pos[:, self._qvel_index]
        j_ori = self._jacobian_ori[:, self._qvel_index]
        j_full = np.vstack([j_pos, j_ori])
        mujoco.mj_fullM(self._model, self._mass, self._data.qM)
        mass = self._mass[self._qvel_index, :][:, self._qvel_index]
        joint_pos = self._qpos[self._qpos_index]
        joint_vel = self._qvel[self._qvel_index]

        error_pos = self._goal_pos - self._ee_pos
        error_ori = self._orientation_error(self._goal_ori, self._ee_ori)
        force = error_pos * kp[0:3] + -velocity_pos * kd[0:3]
        torque = error_ori * kp[3:6] + -velocity_ori * kd[3:6]

        _, lambda_pos, lambda_ori, nullspace = self._opspace_matrices(mass, j_full, j_pos, j_ori)
        wrench = np.concatenate([np.dot(lambda_pos, force), np.dot(lambda_ori, torque)])
        torques = np.dot(j_full.T, wrench) + self._bias_force[self._qvel_index]
        torques += self._nullspace_torques(
            mass, nullspace, controller.initial_joint, joint_pos, joint_vel
        )
        return torques

    def _check_supported(self) -> None:
        controller = self._robot.controller
        unsupported = [
            len(self._env.robots) != 1 and "several robots",
            controller.name != "OSC_POSE" and f"controller {controller.name}",
            getattr(controller, "impedance_mode", "fixed") != "fixed" and "variable impedance",
            not getattr(controller, "uncoupling", True) and "coupled position and orientation",
            getattr(controller, "interpolator_pos", None) is not None and "interpolation",
            getattr(controller, "interpolator_ori", None) is not None and "interpolation",
            type(self._robot.gripper).__name__ != "PandaGripper" and "another gripper",
        ]
        reasons = [reason for reason in unsupported if reason]
        if reasons:
            raise ValueError(f"fast_step does not cover {', '.join(reasons)}: use fast_step=False.")
