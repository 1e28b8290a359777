"""`LiberoEnv`: one LIBERO task as a gymnasium environment in LeRobot's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs import bootstrap, pld_tabletop, simulation
from envs.init_states import load_init_states
from envs.observations import ENVIRONMENT_STATE, IMAGES, STATE, STATE_DIM
from envs.rendering import CAMERAS, REFERENCE, RENDERINGS, Camera
from envs.seeding import global_numpy_seed, literal_numpy_seed
from envs.simulation import ACTION_DIM, CONTROL_MODES
from envs.suites import find_task
from envs.task_geometry import TaskGeometry

SETTLING_STEPS = 10
LAST_SUBSTEP = -1
# LIBERO samples its observations once in the 25 substeps of a control period: in the last one
# after a plain reset, but one substep earlier for each further forced update, and setting a stored
# state forces one. What LeRobot's environment shows is therefore 2 ms older than the simulation.
STORED_STATE_SUBSTEP = 23
_IDLE = np.array([0.0] * 6 + [-1.0])  # no motion, gripper open
_PLACEMENT_ATTEMPTS = 20
TOPPLED_TILT = float(np.radians(60.0))
TOPPLED_RISE = 0.02  # m: what is held or drops into its bin may be tilted, and is not lost


class LiberoEnv(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A LIBERO task with state observations, and camera images on request.

    Observations are a dict: "observation.state" [8] float32 (see `SceneReader.state`),
    "observation.environment_state" float32, unless it is switched off (see
    `SceneReader.environment_state` for `pld_tabletop`, `EntityReader.environment_state` for
    LIBERO's suites) and, for each name in `cameras`, "observation.images.<name>" [image_size,
    image_size, 3] uint8, turned by 180 degrees like LeRobot's LIBERO processor does.

    An action [7] float32 in [-1, 1] is a position change (1 = 5 cm), a rotation change (1 = 0.5
    rad) and the gripper (-1 opens, +1 closes), for 50 ms. The reward is 1 in the step that solves
    the task, which also terminates the episode, and 0 elsewhere. `info` carries "is_success",
    "task" (the instruction), "task_id" and "init_state_id" (-1 when the placement was sampled).

    `reset(options={"init_state_id": i})` starts from the i-th stored state; without it the
    placement is drawn from the BDDL regions. Stored states hold joint positions only: in LIBERO's
    suites fixtures (cabinet, stove) are placed anew at each reset, by `seed` as in LeRobot's
    environment or, without one, by the init state's number, so that a stored start is always the
    same. The simulation is built at the first reset, so that an instance can be sent to another
    process first, and looks for its assets there.

    Args:
        suite: name of the suite, see `envs.suites.suite_names`.
        task: name or number of the task; None is the suite's default.
        cameras: any of "image" (agentview) and "image2" (wrist); empty for state only.
        image_size: height and width of the images in pixels.
        episode_length: steps until truncation; None is the suite's horizon.
        fast_step: use `FastStep` (bit-identical physics) instead of robosuite's own step.
        assets: folder of LIBERO's assets or "hub", see `envs.assets.resolve_assets`.
        rendering: "reference" or "fast", see `envs.rendering.Camera`.
        environment_state: False leaves what a robot has: its own state, and cameras.
        control_mode: "relative", or "absolute": the action's first six components are then the
            pose to go to, position (m, world) and axis-angle (rad).
        terminate_when_toppled: an episode of `pld_tabletop` whose target lies (tilted by more than
            60 degrees, no more than 2 cm above where it stood) terminates, with reward 0. Not for
            evaluation: a few would be saved yet.

    Raises:
        ValueError: unknown suite, task or camera, or a number out of range.
        RenderingUnavailableError: cameras without an OpenGL library.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    gripper_dims = (6,)
    """Action dimensions that command a gripper: -1 opens, +1 closes, 0 keeps."""

    def __init__(
        self,
        suite: str = pld_tabletop.SUITE,
        task: str | int | None = None,
        cameras: Sequence[str] = (),
        image_size: int = 128,
        episode_length: int | None = None,
        fast_step: bool = True,
        render_mode: str | None = None,
        assets: str | Path | None = None,
        rendering: str = REFERENCE,
        control_mode: str = "relative",
        environment_state: bool = True,
        terminate_when_toppled: bool = False,
    ) -> None:
        self._spec = find_task(suite, task)
        cameras = (cameras,) if isinstance(cameras, str) else tuple(cameras)
        unknown = [name for name in cameras if name not in CAMERAS]
        if unknown:
            raise ValueError(f"Unknown cameras {unknown}: choose from {list(CAMERAS)}.")
        if image_size <= 0:
            raise ValueError(f"image_size must be positive, not {image_size}.")
        if episode_length is not None and episode_length <= 0:
            raise ValueError(f"episode_length must be positive, not {episode_length}.")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}.")
        if rendering not in RENDERINGS:
            raise ValueError(f"rendering must be one of {RENDERINGS}, not {rendering!r}.")
        if control_mode not in CONTROL_MODES:
            raise ValueError(f"control_mode must be one of {CONTROL_MODES}, not {control_mode!r}.")
        if terminate_when_toppled and self._spec.suite != pld_tabletop.SUITE:
            raise ValueError(
                f"terminate_when_toppled is for {pld_tabletop.SUITE}: in {self._spec.suite} an "
                "object may have to lie."
            )
        self._renders = bool(cameras) or render_mode is not None
        if self._renders:
            bootstrap.enable_rendering()
        self.cameras = cameras
        self.image_size = image_size
        self.episode_length = episode_length or self._spec.horizon
        self.render_mode = render_mode
        self._use_fast_step = fast_step
        self._assets = assets
        self._rendering = rendering
        self._control_mode = control_mode
        self._environment_state = environment_state
        self._terminate_when_toppled = terminate_when_toppled

        frame = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        vectors = {STATE: STATE_DIM}
        if environment_state:
            vectors[ENVIRONMENT_STATE] = simulation.environment_state_dim(suite)
        self.observation_space = spaces.Dict(
            {
                **{k: spaces.Box(-np.inf, np.inf, (n,), np.float32) for k, n in vectors.items()},
                **{IMAGES + name: frame for name in cameras},
            }
        )
        self.action_space = simulation.action_space(control_mode)
        self._control_env: Any = None
        self._init_states: np.ndarray | None = None
        self._steps = 0
        self._init_state_id = -1
        self._started = False

    @property
    def task_name(self) -> str:
        """The task's name, e.g. "lift_the_can"."""
        return self._spec.name

    @property
    def task_description(self) -> str:
        """The instruction in words."""
        return self._spec.language

    @property
    def task_id(self) -> int:
        """The task's number in its suite."""
        return self._spec.index

    @property
    def num_init_states(self) -> int:
        """How many start states are stored for this task."""
        return len(self._stored_states())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode; see the class for `options`.

        Raises:
            ValueError: an unknown option, or an `init_state_id` that is not stored.
        """
        super().reset(seed=seed)
        options = options or {}
        unknown = set(options) - {"init_state_id"}
        if unknown:
            raise ValueError(f"Unknown reset options {sorted(unknown)}: 'init_state_id' is known.")
        init_state_id = options.get("init_state_id")
        self._build()
        self._place_objects(init_state_id if seed is None else seed)
        if init_state_id is None:
            self._init_state_id = -1
        else:
            self._set_stored_state(int(init_state_id))
        self._settle()
        self._env.robots[0].controller.use_delta = self._control_mode == "relative"
        self._standing_height = float(self._scene.target_pos[2])
        self._steps = 0
        self._started = True
        return self._observation, self._info(is_success=False)

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Apply `action` [7] for one control period of 50 ms."""
        if not self._started:
            raise RuntimeError("Call reset() before step().")
        command = np.asarray(action)
        if command.dtype != np.float32:  # the controller computes with what it is given
            command = command.astype(np.float64)
        if command.shape != (ACTION_DIM,):
            raise ValueError(f"action must have shape ({ACTION_DIM},), not {command.shape}.")
        if not np.isfinite(command).all():
            raise ValueError(f"action must be finite, got {command.tolist()}.")
        success = self._advance(command, self._observe, self._observed_substep)
        self._steps += 1
        lost = self._terminate_when_toppled and self._toppled()
        terminated, truncated = success or lost, self._steps >= self.episode_length
        return self._observation, float(success), terminated, truncated, self._info(success)

    def expert_view(self) -> dict[str, Any]:
        """What a scripted expert may know: positions (world, m), the goal and the start region.

        "target" and "goal" (their names), "eef_pos", "target_pos", "goal_pos" [3], "eef_quat",
        "target_quat" [4] (wxyz), "gripper_qpos" [2], "target_top" (height of the target's top over
        its centre), "region_center" [2] (middle of the places where the target starts) and
        "lift_only" (bool: no delivery is asked for).
        """
        return self._geometry.view()

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The agentview picture [image_size, image_size, 3] uint8 (needs render_mode)."""
        if not self._renders:
            raise bootstrap.RenderingUnavailableError(
                "render() needs render_mode='rgb_array' or cameras at construction."
            )
        return self._camera.picture("image")

    def close(self) -> None:
        """Free the simulation. The next reset builds it again."""
        if self._control_env is not None:
            self._control_env.close()
            self._control_env = None
        self._started = False

    def flat_state(self) -> np.ndarray:
        """The simulator state [1 + nq + nv] float64 as LIBERO stores it: time, qpos, qvel."""
        return np.asarray(self._control_env.get_sim_state())

    def is_settled(self, max_tilt: float, max_speed: float) -> bool:
        """Whether the target stands within `max_tilt` radians of upright and all is at rest.

        At rest: no joint velocity above `max_speed` (m/s or rad/s).
        """
        still = np.abs(self._env.sim.data.qvel).max() <= max_speed
        return bool(self._tilt() <= max_tilt and still)

    def _tilt(self) -> float:
        """Of the target's own z axis, in radians from the vertical."""
        x, y = self._scene.target_quat[1:3]
        return float(np.arccos(np.clip(1.0 - 2.0 * (x * x + y * y), -1.0, 1.0)))

    def _toppled(self) -> bool:
        rise = self._scene.target_pos[2] - self._standing_height
        return bool(rise <= TOPPLED_RISE and self._tilt() > TOPPLED_TILT)

    def _build(self) -> None:
        if self._control_env is not None:
            return
        control_env = simulation.build_control_env(self._spec, self._renders, self._assets)
        self._control_env = control_env
        self._env = env = control_env.env
        self._soft_reset = simulation.SoftReset(env)
        self._scene = simulation.make_reader(env, self._spec)
        self._geometry = TaskGeometry(env, self._spec, self._scene, self._stored_states)
        self._advance = simulation.make_step(env, self._use_fast_step)
        if self._renders:
            self._camera = Camera(env, self.image_size, self._rendering)

    def _place_objects(self, seed: int | None) -> None:
        """Reset the simulation. LIBERO's suites take `seed` literally, as LeRobot does."""
        if seed is not None and self._spec.suite != pld_tabletop.SUITE:
            with literal_numpy_seed(int(seed)):
                placed = any(self._soft_reset() for _ in range(_PLACEMENT_ATTEMPTS))
        else:
            placed = any(self._seeded_reset() for _ in range(_PLACEMENT_ATTEMPTS))
        if not placed:
            raise RuntimeError(
                f"No free placement found for the objects of {self._spec.bddl_file}."
            )

    def _seeded_reset(self) -> bool:
        with global_numpy_seed(self.np_random):
            return self._soft_reset()

    def _settle(self) -> None:
        steps = SETTLING_STEPS - 1
        if self._spec.suite != pld_tabletop.SUITE:
            # The controller's first substep after a reset works on what it read at the reset,
            # before the stored state was set. LeRobot's episodes begin with that kick: so do ours.
            self._env.step(_IDLE)
            steps -= 1
        for _ in range(steps):
            self._advance(_IDLE)
        self._advance(_IDLE, self._observe, self._observed_substep)

    def _set_stored_state(self, init_state_id: int) -> None:
        states = self._stored_states()
        if not 0 <= init_state_id < len(states):
            raise ValueError(f"init_state_id {init_state_id}: 0 to {len(states) - 1} are stored.")
        sim = self._env.sim
        size = 1 + sim.model.nq + sim.model.nv
        if states.shape[1] != size:
            raise ValueError(
                f"{self._spec.init_states_file} has rows of {states.shape[1]} numbers where this "
                f"simulation needs {size}: write it anew with `python -m envs.make_init_states`."
            )
        sim.set_state_from_flattened(states[init_state_id])
        sim.forward()
        self._env._post_process()
        self._env._update_observables(force=True)
        self._init_state_id = init_state_id

    @property
    def _observed_substep(self) -> int:
        stored = self._init_state_id >= 0 and self._spec.suite != pld_tabletop.SUITE
        return STORED_STATE_SUBSTEP if stored else LAST_SUBSTEP

    def _stored_states(self) -> np.ndarray:
        if self._init_states is None:
            self._init_states = load_init_states(self._spec.init_states_file)
        return self._init_states

    def _observe(self) -> None:
        observation = {STATE: self._scene.state()}
        if self._environment_state:
            observation[ENVIRONMENT_STATE] = self._scene.environment_state()
        for name in self.cameras:
            observation[IMAGES + name] = self._camera.picture(name)
        self._observation = observation

    def _info(self, is_success: bool) -> dict[str, Any]:
        return {
            "is_success": is_success,
            "task": self.task_description,
            "task_id": self._spec.index,
            "init_state_id": self._init_state_id,
        }
