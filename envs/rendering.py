"""Camera pictures, as LIBERO draws them or with the expensive effects left out."""

from __future__ import annotations

from typing import Any

import numpy as np

CAMERAS = {"image": "agentview", "image2": "robot0_eye_in_hand"}  # LeRobot's name -> LIBERO's
REFERENCE, FAST = "reference", "fast"
RENDERINGS = (REFERENCE, FAST)


class Camera:
    """Draws square pictures of one simulation.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`, built with an off-screen
            renderer. It must use soft resets: a hard one forgets the settings.
        size: height and width in pixels.
        rendering: "reference" leaves the suite's own settings; "fast" draws without multisampling
            and without reflections. Without reflections, here or in the suite's own settings,
            things outside the picture are skipped, which changes nothing.
    """

    def __init__(self, env: Any, size: int, rendering: str = REFERENCE) -> None:
        self._sim = env.sim
        self._size = size
        self._frustum: FrustumCulling | None = None
        if rendering == FAST:
            _simplify(env.sim)
        if not env.sim.model._model.mat_reflectance.any():
            self._frustum = FrustumCulling(env.sim)

    def picture(self, name: str) -> np.ndarray:
        """[size, size, 3] uint8 of the camera `name`, turned by 180 degrees as LeRobot has it."""
        context = self._sim._render_context_offscreen
        context.gl_ctx.make_current()  # another environment may own it now
        camera = CAMERAS[name]
        if self._frustum is not None:
            self._frustum.hide_outside(camera)
        raw = self._sim.render(camera_name=camera, width=self._size, height=self._size)
        if self._frustum is not None:
            self._frustum.show_all()
        return np.ascontiguousarray(raw[::-1, ::-1])


class FrustumCulling:
    """Hides the geoms that a camera cannot see, which MuJoCo would transform vertex by vertex.

    A geom is hidden when its bounding box lies behind one of the five planes of a square camera's
    view. Without reflections the picture is the same.

    Args:
        sim: robosuite's simulation.
    """

    _HIDDEN = 5  # a geom group that is never drawn

    def __init__(self, sim: Any) -> None:
        self._sim, self._model, self._data = sim, sim.model._model, sim.data._data
        self._groups = self._model.geom_group.copy()
        self._endless = self._model.geom_rbound == 0.0  # planes

    def hide_outside(self, camera: str) -> None:
        """Hide what `camera` does not see at the simulation's present state."""
        model, data = self._model, self._data
        number = self._sim.model.camera_name2id(camera)
        axes = data.geom_xmat.reshape(-1, 3, 3)
        centers = data.geom_xpos + np.einsum("gij,gj->gi", axes, model.geom_aabb[:, :3])
        planes = _inward_normals(model.cam_fovy[number]) @ data.cam_xmat[number].reshape(3, 3).T
        depths = (centers - data.cam_xpos[number]) @ planes.T
        reaches = np.einsum("gpj,gj->gp", np.abs(planes @ axes), model.geom_aabb[:, 3:])
        visible = (depths + reaches >= 0.0).all(axis=1) | self._endless
        model.geom_group[:] = np.where(visible, self._groups, self._HIDDEN)

    def show_all(self) -> None:
        """Undo `hide_outside`."""
        self._model.geom_group[:] = self._groups


def _inward_normals(fovy: float) -> np.ndarray:
    """Normals [5, 3] of the view's planes, in the frame of the camera, which looks along -z."""
    sine, cosine = np.sin(np.radians(fovy) / 2), np.cos(np.radians(fovy) / 2)
    return np.array(
        [
            [0.0, 0.0, -1.0],
            [cosine, 0.0, -sine],
            [-cosine, 0.0, -sine],
            [0.0, cosine, -sine],
            [0.0, -cosine, -sine],
        ]
    )


def _simplify(sim: Any) -> None:
    model, context = sim.model._model, sim._render_context_offscreen
    model.vis.quality.offsamples = 0
    model.mat_reflectance[:] = 0.0  # each reflecting surface costs another pass
    context.gl_ctx.make_current()
    context.con.free()  # the number of samples is fixed when the context is made
    context._set_mujoco_context_and_buffers()
