"""A LeRobot robot that stops where it is when anything goes wrong."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pld_ray.config.arm import ArmConfig
from pld_ray.rollout.keyboard import tell_the_person
from pld_ray.rollout.robot.calls import Calls, NoAnswerError
from pld_ray.rollout.robot.errors import ArmError
from pld_ray.rollout.robot.kinematics import Kinematics
from pld_ray.rollout.robot.make_robot import make_robot, one_line
from pld_ray.rollout.robot.person import Person

log = logging.getLogger("pld_ray")

LOOK_S = 0.2
"""Between two looks whether somebody ends the wait for a robot that does not answer."""
RETRY_S = 1.0
"""Between two attempts to reach a robot that does not answer."""
CONNECT_S = 60.0
"""That a robot may take to connect, cameras that warm up among it, or to let go."""
POS = ".pos"
"""How LeRobot's names of joint positions end."""


@dataclass(frozen=True)
class Measured:
    """What the robot tells: joints [n] (rad), how far the gripper is open in [0, 1], pictures."""

    q: np.ndarray
    gripper: float
    images: Mapping[str, np.ndarray]


class Arm:
    """One robot of this process, whoever steps it.

    Args:
        robot: LeRobot's settings of it.
        options: how it moves.

    Attributes:
        joints: the arm's, as the robot names them.
        kinematics: of these.
        rest: joints [n] (rad) and opening of the gripper where episodes begin.
        user: the environment that moved it last.
        person: beside it.
        stopped: why it holds still until a person says go; None while it may move.

    Raises:
        ValueError: the settings do not fit each other, or the model.
    """

    def __init__(self, robot: Mapping[str, Any], options: ArmConfig) -> None:
        self._robot, self.options = make_robot(robot), options
        self._calls = Calls()
        actions = [n.removesuffix(POS) for n in self._robot.action_features if n.endswith(POS)]
        if options.gripper is not None and options.gripper not in actions:
            raise ValueError(
                f"env.arm.gripper={options.gripper}: the robot has {', '.join(actions)}: name one "
                "of these, or null"
            )
        self.joints = [name for name in actions if name != options.gripper]
        if unknown := sorted({*options.rest_pose} ^ {*actions}):
            raise ValueError(
                f"env.arm.rest_pose must say where each of {', '.join(actions)} is, and no other: "
                f"look at {unknown[0]}"
            )
        self.kinematics = Kinematics(
            str(options.model),
            [options.joint_names.get(name, name) for name in self.joints],
            str(options.end_effector),
        )
        degrees = self.kinematics.hinges & (options.joint_unit == "degrees")
        self._unit = np.where(degrees, np.pi / 180, 1.0)
        self.cameras = {
            name: shape
            for name, shape in self._robot.observation_features.items()
            if isinstance(shape, tuple) and len(shape) == 3 and shape[2] == 3
        }
        self.rest = self._in_our_units(
            {f"{name}{POS}": value for name, value in options.rest_pose.items()}
        )
        low, high = self.kinematics.low, self.kinematics.high
        for name, value, least, most in zip(self.joints, self.rest.q, low, high, strict=True):
            if not least <= value <= most:
                raise ValueError(
                    f"env.arm.rest_pose.{name}={options.rest_pose[name]} is beyond the joint's "
                    f"limits in {options.model}, {least:.3f} to {most:.3f} rad"
                )
        self.user: object = None
        self.person = Person(options.wait_for_person, self.stop)
        self.stopped: str | None = None
        self._greeted = False

    def read(self) -> Measured | None:
        """What it tells now; None if it cannot be read, which stops it."""
        try:
            return self._calls.call(self._observe, self.options.call_timeout_s)
        except NoAnswerError as error:
            self.stop(str(error))
        except Exception as error:  # whatever a driver raises
            self.stop(f"the robot cannot be read ({one_line(error)})")
        return None

    def send(self, q: np.ndarray, gripper: float) -> None:
        """Command joints [n] (rad) and the gripper's opening, unless it is stopped."""
        if self.stopped is not None:
            return
        command = self._in_its_units(q, gripper)
        try:
            self._calls.call(lambda: self._robot.send_action(command), self.options.call_timeout_s)
        except NoAnswerError as error:
            self.stop(str(error))
        except Exception as error:
            self.stop(f"the robot takes no command ({one_line(error)})")

    def stop(self, why: str) -> None:
        """Hold where it is; no command is sent until `recover` has asked."""
        if self.stopped is not None:
            return
        self.stopped = why
        with contextlib.suppress(Exception):  # one that cannot be told keeps its last command
            self._calls.call(self._hold, self.options.call_timeout_s)
        log.warning("the arm has stopped: %s; its episode is not learnt from", why)

    def recover(self) -> None:
        """Connect, where it is not; and after a stop wait until it answers and the person agrees.

        A call that hangs is waited for: only one driver's call is under way at a time.

        LeRobot lets go of the motors when it connects anew: the person is asked for that too.

        Raises:
            ArmError: it was never there, or nobody can be asked.
        """
        if not self._greeted:
            self.connect()
            self._greeted = True
        while self.stopped is not None:
            self.person.on_wait()
            if self._calls.hangs:
                tell_the_person(
                    f"the arm has stopped: {self.stopped}, and still does not: look at its cables; "
                    "nothing is asked of it until it answers"
                )
                while self._calls.hangs:
                    self.person.on_wait()
                    self._calls.wait(LOOK_S)
            if self._answers():
                self.person.confirm(
                    f"the arm has stopped: {self.stopped}; press Enter if it may move on",
                    stopped=True,
                )
                self.stopped = None
            else:
                self.person.confirm(
                    f"the arm has stopped: {self.stopped}; support it, its motors let go when it "
                    "is connected anew, and press Enter",
                    stopped=True,
                )
                self._reconnect()

    def connect(self) -> None:
        """Connect and look once.

        Raises:
            ArmError: it is not there, is not calibrated, or tells something else than it says.
        """
        try:
            calibrated, images = self._calls.call(self._introduce, CONNECT_S)
        except Exception as error:
            raise ArmError(f"env.robot cannot be used: {one_line(error)}") from error
        if not calibrated:
            raise ArmError("env.robot is not calibrated: run lerobot-calibrate first")
        for name, shape in self.cameras.items():
            given = images.get(name, np.zeros(0))
            if given.shape != shape or given.dtype != np.uint8:
                raise ArmError(
                    f"the camera {name} of env.robot gives {given.dtype} of shape {given.shape}, "
                    f"and promised uint8 of {shape}"
                )

    def disconnect(self) -> None:
        """Let go of the robot and of the person's device."""
        self.person.leave()
        try:
            self._calls.call(self._robot.disconnect, CONNECT_S)
        except NoAnswerError as error:
            log.warning("%s: it could not be told to let go, and may hold its motors still", error)
        except Exception:  # it was not connected, or is gone
            pass
        self._greeted = False

    def close(self) -> None:
        """Nobody needs it any more; safe to call again."""
        self.disconnect()
        self._calls.close()

    def _answers(self) -> bool:
        """Whether it can be read."""
        with contextlib.suppress(Exception):
            self._calls.call(self._observe, self.options.call_timeout_s)
            return True
        return False

    def _reconnect(self) -> None:
        with contextlib.suppress(Exception):
            self._calls.call(self._robot.disconnect, CONNECT_S)
        try:
            self._calls.call(lambda: self._robot.connect(calibrate=False), CONNECT_S)
        except Exception:  # looked for again and again
            time.sleep(RETRY_S)

    # --- on the driver's thread ------------------------------------------------------------------

    def _observe(self) -> Measured:
        if not self._robot.is_connected:
            raise ConnectionError("it is not connected")
        return self._in_our_units(self._robot.get_observation())

    def _hold(self) -> None:
        """The command is where it is."""
        now = self._in_our_units(self._robot.get_observation())
        self._robot.send_action(self._in_its_units(now.q, now.gripper))

    def _introduce(self) -> tuple[bool, Mapping[str, np.ndarray]]:
        """Connect; whether it is calibrated, and what its cameras see."""
        if not self._robot.is_connected:
            self._robot.connect(calibrate=False)
        calibrated, told = self._robot.is_calibrated, self._robot.get_observation()
        return calibrated, self._in_our_units(told).images

    # --- units -----------------------------------------------------------------------------------

    def _in_our_units(self, told: Mapping[str, Any]) -> Measured:
        q = self._unit * np.array([told[f"{n}{POS}"] for n in self.joints], dtype=np.float64)
        gripper, (closed, opened) = 0.0, self.options.gripper_range
        if self.options.gripper is not None:
            gripper = (float(told[f"{self.options.gripper}{POS}"]) - closed) / (opened - closed)
        if not (np.isfinite(q).all() and np.isfinite(gripper)):
            raise ValueError(f"it tells joints {q} and gripper {gripper}")
        images = {name: np.asarray(told[name]) for name in self.cameras if name in told}
        return Measured(q, float(np.clip(gripper, 0.0, 1.0)), images)

    def _in_its_units(self, q: np.ndarray, gripper: float) -> dict[str, float]:
        values = (q / self._unit).tolist()
        command = {f"{name}{POS}": value for name, value in zip(self.joints, values, strict=True)}
        if self.options.gripper is not None:
            closed, opened = self.options.gripper_range
            command[f"{self.options.gripper}{POS}"] = closed + gripper * (opened - closed)
        return command


_open: dict[str, tuple[Arm, list[object]]] = {}
"""The arms of this process, and who uses each: training and evaluation share one."""


def borrow_arm(robot: Mapping[str, Any], options: ArmConfig, user: object) -> Arm:
    """The arm with these settings, for a user who gives it back.

    Raises:
        ValueError: see `Arm`.
    """
    key = json.dumps([robot, asdict(options)], sort_keys=True)
    if key not in _open:
        _open[key] = Arm(robot, options), []
    arm, users = _open[key]
    users.append(user)
    return arm


def give_back(user: object) -> None:
    """Whoever used an arm needs it no more; safe to call again."""
    for key, (arm, users) in list(_open.items()):
        users[:] = [other for other in users if other is not user]
        if not users:
            del _open[key]
            arm.close()
