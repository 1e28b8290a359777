"""A SpaceMouse in a person's hand: six axes and two buttons, read through pyspacemouse."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pld_ray.config.intervention import InterventionConfig
from pld_ray.rollout.device import Device, DeviceError, DeviceLostError, Reading
from pld_ray.rollout.keyboard import GRIPPER, TerminalKeyboard

AXES = ("x", "y", "z", "roll", "pitch", "yaw")
"""Of LIBERO's action, dimension by dimension: ROS's frame, x forward, y left, z up."""
DEAD = 0.05
"""Share of an axis's way that is no movement: a hand rests on it."""
RELEASE_S = 0.5
"""Seconds without movement after which the policy acts again, as in HIL-SERL."""
MOST_REPORTS = 64
"""That are read at once: the device sends more of them than there are steps."""
WHERE = "intervention.device=spacemouse"

log = logging.getLogger("pld_ray")


class SpaceMouse:
    """A `Device` of seven dimensions; the first button closes the gripper, the last one opens it.

    Args:
        options: `speed`.
        mouse: pyspacemouse's, open and in ROS's convention.
        keys: whose verdicts and pause count; None has none, then the environment or a classifier
            says what succeeded.
        clock: monotonic seconds.
    """

    dims = tuple(range(7))

    def __init__(
        self,
        options: InterventionConfig,
        mouse: Any,
        keys: Device | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speed, self._mouse, self._keys, self._clock = options.speed, mouse, keys, clock
        self._grip: float | None = None
        self.episode_begins()

    def read(self) -> Reading:
        typed = Reading() if self._keys is None else self._keys.read()
        if typed.paused or typed.stop:
            return typed
        state, now = self._newest(), self._clock()
        axes = [value if abs(value) > DEAD else 0.0 for value in (state[axis] for axis in AXES)]
        pressed = state.buttons
        if any(axes) or any(pressed):
            self._moved = now
        if now - self._moved > RELEASE_S:
            self._grip = None
            return Reading(verdict=typed.verdict)
        if any(pressed):
            self._grip = 1.0 if pressed[0] else -1.0
        action = {dim: self._speed * max(-1.0, min(1.0, value)) for dim, value in enumerate(axes)}
        if self._grip is not None:
            action[GRIPPER] = self._grip
        return Reading(action, typed.verdict)

    def episode_begins(self) -> None:
        self._grip = None
        self._moved = -float("inf")
        if self._keys is not None:
            self._keys.episode_begins()

    def close(self) -> None:
        self._mouse.close()
        if self._keys is not None:
            self._keys.close()

    def _newest(self) -> Any:
        """The state after all reports that wait."""
        try:
            state, last = self._mouse.read(), None
            for _ in range(MOST_REPORTS):
                if state.t == last:  # nothing came
                    break
                last = state.t
                state = self._mouse.read()
        except Exception as error:  # whatever the driver raises when its device has gone
            raise DeviceLostError(
                f"the SpaceMouse does not answer ({type(error).__name__}: {error})"
            ) from error
        return state


def open_spacemouse(options: InterventionConfig) -> SpaceMouse:
    """The SpaceMouse that is plugged in, and the terminal's keys where there is a terminal.

    Raises:
        DeviceError: the driver is not installed, no SpaceMouse is there, or different ones are.
    """
    try:
        import pyspacemouse
    except (ImportError, OSError) as error:
        raise DeviceError(
            f'{WHERE} needs a driver that is not installed ({error}): pip install "pld-ray'
            '[spacemouse]"'
        ) from error
    try:
        names = set(pyspacemouse.get_connected_devices())
        if len(names) > 1:
            raise DeviceError(
                f"{WHERE}: {' and '.join(sorted(names))} are there: unplug all but one"
            )
        mouse = pyspacemouse.open(axis_convention=pyspacemouse.AxisConvention.ROS)
    except (OSError, RuntimeError, AttributeError) as error:
        raise DeviceError(
            f"{WHERE} cannot be opened ({error}): plug it in, install the HID library (on Debian "
            "libhidapi-hidraw0), let this user read /dev/hidraw*, or choose another device"
        ) from error
    try:
        keys = TerminalKeyboard(options)
    except DeviceError:
        keys = None
        log.warning("%s: there is no terminal whose keys could end an episode", WHERE)
    return SpaceMouse(options, mouse, keys)
