"""Where an arm's hand is, and which joints bring it elsewhere: MuJoCo on a model file."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

ITERATIONS = 20
DAMPING = 0.01
"""Metres a radian: directions in which the hand hardly moves are left alone."""
ROTATION_M = 0.05
"""Metres of error that a radian of it weighs as much as: an arm of five joints cannot keep its
hand's orientation, and shall follow the position."""
LIMITED = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


class Kinematics:
    """Of one arm in a model that may hold more.

    Args:
        path: MJCF or URDF.
        joints: names of the arm's, in the order of every `q` [n] (rad; of a slide m).
        end_effector: name of a site, or else of a body.

    Attributes:
        low, high: limits [n] of the joints; infinite where the model has none.
        hinges: [n] bool; the others slide.

    Raises:
        ValueError: no such file or name in it, or MuJoCo cannot read it.
    """

    def __init__(self, path: str, joints: Sequence[str], end_effector: str) -> None:
        self._model = load_model(path)
        self._data = mujoco.MjData(self._model)
        known = names(self._model, mujoco.mjtObj.mjOBJ_JOINT)
        if unknown := [name for name in joints if name not in known]:
            raise ValueError(
                f"{path} has no joint {unknown[0]!r} (it has {', '.join(known) or 'none'}): say "
                f"which it is with env.arm.joint_names={{{unknown[0]}: NAME}}"
            )
        ids = np.array([self._model.joint(name).id for name in joints], dtype=int)
        kinds = self._model.jnt_type[ids]
        if not np.isin(kinds, LIMITED).all():
            raise ValueError(f"{path}: the arm's joints must be hinges or slides")
        self._qpos, self._dof = self._model.jnt_qposadr[ids], self._model.jnt_dofadr[ids]
        self.hinges: np.ndarray = kinds == mujoco.mjtJoint.mjJNT_HINGE
        free = self._model.jnt_limited[ids] == 0
        self.low, self.high = self._model.jnt_range[ids].T.copy()
        self.low[free], self.high[free] = -np.inf, np.inf
        sites = names(self._model, mujoco.mjtObj.mjOBJ_SITE)
        bodies = names(self._model, mujoco.mjtObj.mjOBJ_BODY)
        if end_effector not in (*sites, *bodies):
            raise ValueError(
                f"env.arm.end_effector={end_effector}: {path} has no such site or body (it has "
                f"{', '.join([*sites, *bodies])})"
            )
        self._is_site = end_effector in sites
        own = self._model.site(end_effector) if self._is_site else self._model.body(end_effector)
        self._id = own.id

    def pose(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hand's position [3] (m) and rotation [3, 3] in the model's frame."""
        self._data.qpos[self._qpos] = q
        mujoco.mj_kinematics(self._model, self._data)
        data, i = self._data, self._id
        position, rotation = (
            (data.site_xpos[i], data.site_xmat[i])
            if self._is_site
            else (data.xpos[i], data.xmat[i])
        )
        return position.copy(), rotation.reshape(3, 3).copy()

    def reach(self, q: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """Joints [n] within their limits that bring the hand there, or nearer, from `q`.

        Damped least squares, `dq = J' (J J' + d^2)^-1 e`, again and again.
        """
        jacobian = np.zeros((6, self._model.nv))
        point = mujoco.mj_jacSite if self._is_site else mujoco.mj_jacBody
        for _ in range(ITERATIONS):
            at, turned = self.pose(q)
            turn = Rotation.from_matrix(rotation @ turned.T).as_rotvec()
            error = np.concatenate([position - at, ROTATION_M * turn])
            if np.linalg.norm(error) < 1e-6:
                break
            mujoco.mj_comPos(self._model, self._data)
            point(self._model, self._data, jacobian[:3], jacobian[3:], self._id)
            j = jacobian[:, self._dof] * np.repeat([1.0, ROTATION_M], 3)[:, None]
            damped = j @ j.T + DAMPING**2 * np.eye(6)
            q = np.clip(q + j.T @ np.linalg.solve(damped, error), self.low, self.high)
        return q


def load_model(path: str) -> mujoco.MjModel:
    """The model without its meshes; links that are fixed to another keep their names.

    Raises:
        ValueError: it cannot be read.
    """
    if not pathlib.Path(path).is_file():
        raise ValueError(f"env.arm.model={path}: no such file")
    try:
        spec = mujoco.MjSpec.from_file(path)
        spec.compiler.fusestatic = False
        # a link of nothing but meshes has no mass without them; nothing here falls
        spec.compiler.boundmass = spec.compiler.boundinertia = 1e-6
        for geom in list(spec.geoms):
            if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
                spec.delete(geom)
        for mesh in list(spec.meshes):
            spec.delete(mesh)
        return spec.compile()
    except (ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"env.arm.model={path} cannot be read by MuJoCo: {why}") from error


def names(model: mujoco.MjModel, kind: mujoco.mjtObj) -> list[str]:
    """Of all that have one."""
    count = {
        mujoco.mjtObj.mjOBJ_JOINT: model.njnt,
        mujoco.mjtObj.mjOBJ_SITE: model.nsite,
        mujoco.mjtObj.mjOBJ_BODY: model.nbody,
    }[kind]
    found = (mujoco.mj_id2name(model, kind, i) for i in range(count))
    return [name for name in found if name]
