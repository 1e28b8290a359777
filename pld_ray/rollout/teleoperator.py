"""LeRobot's teleoperators as a device: gamepad, and the keyboard of a desktop."""

from __future__ import annotations

from typing import Any

from pld_ray.config.intervention import InterventionConfig
from pld_ray.rollout.device import DeviceError, DeviceLostError, Reading
from pld_ray.rollout.intervention import Verdict

DIMS = {
    "delta_x": 0,
    "delta_y": 1,
    "delta_z": 2,
    "delta_roll": 3,
    "delta_pitch": 4,
    "delta_yaw": 5,
    "gripper": 6,
}
"""LeRobot's name of an axis -> dimension of LIBERO's action."""
GRIPPER = DIMS["gripper"]
GRIPS = {0: 1.0, 2: -1.0}
"""LeRobot closes with 0 and opens with 2; 1 stays. LIBERO closes with 1 and opens with -1."""


class TeleoperatorDevice:
    """A `Device` made of a connected LeRobot `Teleoperator` that commands end-effector deltas.

    Args:
        teleoperator: with `get_action` and `get_teleop_events`.
        options: `speed`.

    Raises:
        DeviceError: it commands nothing that an arm's hand could do.
    """

    def __init__(self, teleoperator: Any, options: InterventionConfig) -> None:
        self._teleoperator, self._speed = teleoperator, options.speed
        self.dims = axes_of(teleoperator)
        self._grip: float | None = None

    def read(self) -> Reading:
        try:
            # in this order: asking for events forgets the keys that are held
            commands = self._teleoperator.get_action()
            events = {e.value: on for e, on in self._teleoperator.get_teleop_events().items()}
        except Exception as error:  # whatever a driver raises when its device has gone
            raise DeviceLostError(
                f"{self._teleoperator.name} does not answer ({type(error).__name__}: {error})"
            ) from error
        verdict = verdict_of(events)
        if not events.get("is_intervention"):
            self._grip = None
            return Reading(verdict=verdict)
        self._grip = GRIPS.get(round(float(commands.get("gripper", 1))), self._grip)
        action = {
            DIMS[name]: self._speed * max(-1.0, min(1.0, float(value)))
            for name, value in commands.items()
            if name in DIMS and name != "gripper"
        }
        if self._grip is not None:
            action[GRIPPER] = self._grip
        return Reading(action, verdict)

    def episode_begins(self) -> None:
        self._grip = None

    def close(self) -> None:
        if self._teleoperator.is_connected:
            self._teleoperator.disconnect()


def axes_of(teleoperator: Any) -> list[int]:
    """Action dimensions that a teleoperator commands.

    Raises:
        DeviceError: it has no axis of ours.
    """
    names = dict(teleoperator.action_features.get("names", {}))
    dims = sorted(DIMS[name] for name in names if name in DIMS)
    if not dims:
        raise DeviceError(
            f"{teleoperator.name} commands {sorted(names)} and none of {sorted(DIMS)}: choose "
            "another intervention.device"
        )
    return dims


def verdict_of(events: dict[str, Any]) -> Verdict | None:
    """How the person ends the episode, if they do."""
    if events.get("rerecord_episode"):
        return "discard"
    if events.get("success"):
        return "success"
    return "failure" if events.get("terminate_episode") or events.get("failure") else None


def make_teleoperator(name: str) -> Any:
    """LeRobot's teleoperator of this name, connected.

    Raises:
        DeviceError: its driver is not installed, or the device is not there.
    """
    where = f"intervention.device={name}"
    try:
        from lerobot.teleoperators.gamepad import GamepadTeleop, GamepadTeleopConfig
        from lerobot.teleoperators.keyboard import (
            KeyboardEndEffectorTeleop,
            KeyboardEndEffectorTeleopConfig,
        )

        made: Any = (
            GamepadTeleop(GamepadTeleopConfig())
            if name == "gamepad"
            else KeyboardEndEffectorTeleop(KeyboardEndEffectorTeleopConfig(use_gripper=True))
        )
        made.connect()
    except ImportError as error:
        raise DeviceError(f"{where} needs a driver that is not installed: {error}") from error
    except (OSError, RuntimeError) as error:
        raise DeviceError(
            f"{where} cannot be opened ({error}): plug it in, or choose another"
        ) from error
    listens = getattr(made, "listener", True)  # a keyboard without a desktop hears nothing
    runs = getattr(getattr(made, "gamepad", None), "running", True)
    if not made.is_connected or not listens or not runs:
        raise DeviceError(
            f"{where} is not there: plug it in (keyboard_ee needs a desktop), or choose another, "
            "such as keyboard, which reads this terminal"
        )
    return made
