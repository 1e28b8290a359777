"""An arm that LeRobot drives, as a gymnasium environment: steps of its hand, safely."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from scipy.spatial.transform import Rotation

from envs.observations import IMAGES, STATE
from pld_ray.config.arm import ArmConfig
from pld_ray.rollout.control_clock import ControlClock
from pld_ray.rollout.device import Reading
from pld_ray.rollout.robot.arm import borrow_arm, give_back
from pld_ray.rollout.robot.motion import Motion
from pld_ray.rollout.robot.person import terminal

GRIPPER = 6
SETTLE_S = 0.5
"""Seconds for which the arm is left alone at the end of its way to the rest pose."""
NUM_INIT_STATES = 1_000_000
"""As many as anybody wants: a person arranges each."""

Observation = dict[str, np.ndarray]


class RobotEnv(gym.Env[Observation, np.ndarray]):
    """One arm, moved by steps of its hand at a control rate.

    An action [7] in [-1, 1] moves the hand by `step_m` (x, y, z, model's frame), turns it by
    `step_rad` (about these axes) and closes the gripper (+1) or opens it (-1) by `gripper_step` of
    its range, from where it was last sent; without a gripper it is [6]. `observation.state` is
    joints (rad; of a slide m), the hand's position (m) and rotation vector (rad), and how far the
    gripper is open in [0, 1]; `observation.images.NAME` [H, W, 3] uint8 is a camera of the robot's.
    The reward is 0, but where this environment asks the person itself: 1 with Enter.

    The robot is reached at the first reset. A step that stops the arm, or finds it stopped, tells
    `info["env_failure"]`; the next reset waits for the person.

    Args:
        robot, arm: `EnvConfig.robot` and, as a mapping, `EnvConfig.arm`.
        control_hz: steps per second.
        episode_length: steps until truncation.
        task: what it is to do, in words.
        render_mode: `rgb_array` renders the first camera.

    Attributes:
        clock: of a step: it ends between command and observation.
        asks_person: False while somebody else reads the person's device at every step.

    Raises:
        ValueError: the settings do not fit the robot or its model.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        robot: Mapping[str, Any],
        arm: Mapping[str, Any],
        control_hz: float,
        episode_length: int,
        task: str = "",
        render_mode: str | None = None,
    ) -> None:
        options = ArmConfig(**arm)
        self.arm = borrow_arm(robot, options, self)
        self.episode_length, self.task, self.render_mode = episode_length, task, render_mode
        self.num_init_states = NUM_INIT_STATES
        self.gripper_dims = () if options.gripper is None else (GRIPPER,)
        self.asks_person = True
        self.clock, self._hz = ControlClock(control_hz), control_hz
        try:
            self._motion = Motion(self.arm.kinematics, options, self.arm.rest.q)
        except ValueError:
            self.close()
            raise
        self._measured, self._gripper = self.arm.rest, self.arm.rest.gripper
        self._steps, self._init_state_id = 0, -1
        state_dim = len(self.arm.joints) + 6 + len(self.gripper_dims)
        self.observation_space = gym.spaces.Dict(
            {
                STATE: gym.spaces.Box(-np.inf, np.inf, (state_dim,), np.float32),
                **{
                    f"{IMAGES}{name}": gym.spaces.Box(0, 255, shape, np.uint8)
                    for name, shape in self.arm.cameras.items()
                },
            }
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (6 + len(self.gripper_dims),), np.float32)

    def check(self, attended: bool) -> None:
        """Reach the robot, and whoever is waited for, without a command.

        Args:
            attended: the person has a device.

        Raises:
            ArmError: one of them is not there.
        """
        self.arm.connect()
        self.arm.disconnect()
        if self.arm.options.wait_for_person and not attended:
            os.close(terminal())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._init_state_id = int((options or {}).get("init_state_id", -1))
        self.arm.user = self
        while True:
            self.arm.person.on_wait()
            self.arm.recover()
            if not self._go_to_rest():
                continue
            self.arm.person.confirm("arrange the scene, then press Enter to begin the episode")
            measured = self.arm.read()
            if measured is not None and self.arm.stopped is None:
                break
        self._measured, self._gripper, self._steps = measured, self.arm.rest.gripper, 0
        self._motion.start(self.arm.rest.q)
        self.clock.restart()
        return self._observation(), self._info()

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reading = self.arm.person.poll() if self.asks_person else Reading()
        failure = self._advance(np.asarray(action, dtype=np.float64))
        if reading.verdict == "discard":
            failure = failure or "the person threw the episode away"
        info = self._info()
        if failure is not None:
            return self._observation(), 0.0, False, True, {**info, "env_failure": failure}
        self._steps += 1
        info["is_success"] = reading.verdict == "success"
        truncated = self._steps >= self.episode_length
        reward = float(info["is_success"])
        return self._observation(), reward, reading.verdict is not None, truncated, info

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The first camera's picture [H, W, 3] uint8.

        Raises:
            ValueError: the robot has none.
        """
        if not self._measured.images:
            raise ValueError("env.robot has no cameras to film with: set env.robot.cameras")
        return next(iter(self._measured.images.values()))

    def close(self) -> None:
        give_back(self)

    def _advance(self, action: np.ndarray) -> str | None:
        """Command one step and look at the end of its period; why it could not be done."""
        if self.arm.user is not self:
            return "the arm was moved elsewhere meanwhile"
        if not np.isfinite(action).all():
            self.arm.stop(f"an action was {action.tolist()}")
        if self.arm.stopped is None:
            action = np.clip(action, -1.0, 1.0)
            q = self._motion.step(action[:GRIPPER], self._measured.q)
            if self.gripper_dims:
                opened = self._gripper - self.arm.options.gripper_step * action[GRIPPER]
                self._gripper = float(np.clip(opened, 0.0, 1.0))
            self.arm.send(q, self._gripper)
            self.clock.tick()
            self._measured = self.arm.read() or self._measured
        return self.arm.stopped

    def _go_to_rest(self) -> bool:
        """Move slowly to the rest pose; False if the arm stops on the way."""
        measured = self.arm.read()
        if measured is None:
            return False
        rest, pace = self.arm.rest, ControlClock(self._hz)
        speed = self.arm.options.reset_speed / self._hz
        needed = math.ceil(float(np.abs(rest.q - measured.q).max()) / speed)
        settling = math.ceil(SETTLE_S * self._hz)
        self._motion.start(measured.q)
        settled = 0
        for _ in range(2 * needed + 2 * settling):  # twice the time that it should take
            self.arm.person.poll()
            q = self._motion.approach(rest.q, speed, measured.q)
            self.arm.send(q, rest.gripper)
            pace.tick()
            measured = self.arm.read()
            if measured is None or self.arm.stopped is not None:
                return False
            settled += bool(np.array_equal(q, rest.q))
            if settled >= settling:
                return True
        self.arm.stop("it cannot get to its rest pose: look what is in its way")
        return False

    def _observation(self) -> Observation:
        measured = self._measured
        position, rotation = self.arm.kinematics.pose(measured.q)
        turn = Rotation.from_matrix(rotation).as_rotvec()
        gripper = [measured.gripper] if self.gripper_dims else []
        state = np.concatenate([measured.q, position, turn, gripper]).astype(np.float32)
        images = {f"{IMAGES}{name}": image for name, image in measured.images.items()}
        return {STATE: state, **images}

    def _info(self) -> dict[str, Any]:
        return {
            "is_success": False,
            "task": self.task,
            "task_id": 0,
            "init_state_id": self._init_state_id,
        }
