"""The operational-space controller of robosuite 1.4 in compiled pieces, equal in every bit.

robosuite computes, for an end effector at pose (p, R) with Jacobian J, mass matrix M and a goal,

    F   = kp (p_goal - p) - kd v                              force, and likewise a torque
    tau = J^T [Lambda_p F_p ; Lambda_r F_r] + g + N^T tau_0   Khatib (1987)

in about thirty numpy calls. Element-wise arithmetic gives the same bits compiled or not. Matrix
products do not: numpy and numba link different BLAS libraries. So each product stays on the side
on which robosuite has it: the compiled functions below call robosuite's own compiled functions,
and the products between the two are numpy's, in `FastStep`. For the same reason the Jacobians and
the mass matrix are column-major, as they come out of robosuite's indexing.
"""

# ruff: noqa: E402  robosuite must not be imported before the bootstrap
from __future__ import annotations

import numba
import numpy as np

from envs.bootstrap import import_libero

import_libero()

from robosuite.utils.control_utils import (
    nullspace_torques,
    opspace_matrices,
    orientation_error,
)


@numba.njit(cache=True)
def copy_arm(  # type: ignore[no-untyped-def]
    jacobian_pos, jacobian_ori, mass_all, arm_dofs, j_pos, j_ori, j_full, mass
):
    """Pick the arm's columns of the Jacobians [3, nv] and its block of the mass matrix [nv, nv].

    Fills j_pos and j_ori [3, n], j_full [6, n] and mass [n, n] for the n velocities `arm_dofs`.
    """
    n = len(arm_dofs)
    for col in range(n):
        dof = arm_dofs[col]
        for row in range(3):
            j_pos[row, col] = j_full[row, col] = jacobian_pos[row, dof]
            j_ori[row, col] = j_full[3 + row, col] = jacobian_ori[row, dof]
        for row in range(n):
            mass[row, col] = mass_all[arm_dofs[row], dof]


@numba.njit(cache=True)
def goal_wrench(  # type: ignore[no-untyped-def]
    goal_pos, goal_ori, ee_pos, ee_ori, velocity_pos, velocity_ori, kp, kd, force, torque
):
    """Fill `force` [3] and `torque` [3] toward the goal pose (position [3], rotation [3, 3])."""
    error_ori = orientation_error(goal_ori, ee_ori)
    for i in range(3):
        force[i] = (goal_pos[i] - ee_pos[i]) * kp[i] + (-velocity_pos[i]) * kd[i]
        torque[i] = error_ori[i] * kp[3 + i] + (-velocity_ori[i]) * kd[3 + i]


@numba.njit(cache=True)
def task_space_inertia(mass, j_full, j_pos, j_ori):  # type: ignore[no-untyped-def]
    """Lambda_p [3, 3], Lambda_r [3, 3] and the null-space projector N [n, n]."""
    _, lambda_pos, lambda_ori, nullspace = opspace_matrices(mass, j_full, j_pos, j_ori)
    return lambda_pos, lambda_ori, nullspace


@numba.njit(cache=True)
def command_arm(  # type: ignore[no-untyped-def]
    torques, bias_force, mass, nullspace, rest_pose, qpos, qvel, arm_qpos, arm_dofs, limits,
    actuators, ctrl
):  # fmt: skip
    """Add gravity and null-space torques to `torques` [n], clip, and write them to `ctrl`.

    `limits` [2, n] are the lowest and highest torques of the n `actuators`, N m.
    """
    n = len(arm_dofs)
    joint_pos = np.empty(n)
    joint_vel = np.empty(n)
    for i in range(n):
        joint_pos[i] = qpos[arm_qpos[i]]
        joint_vel[i] = qvel[arm_dofs[i]]
    rest = nullspace_torques(mass, nullspace, rest_pose, joint_pos, joint_vel)
    for i in range(n):
        total = (torques[i] + bias_force[arm_dofs[i]]) + rest[i]
        ctrl[actuators[i]] = min(max(total, limits[0, i]), limits[1, i])
