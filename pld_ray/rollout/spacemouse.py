"""A SpaceMouse in a person's hand: six axes and two buttons, read through pyspacemouse."""

from __future__ import annotations

import contextlib
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
FULL = 63
"""Reports that Linux keeps; it drops those that come then, that of the release among them."""
FRESH_S = 0.2
"""Seconds for which a report of the axes holds: a cap that is moved sends many within them."""
NEXT_REPORT_S = 0.04
"""Within which a cap that is moved sends another report."""
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
        sleep: of this machine, after nobody has read for long.
    """

    dims = tuple(range(7))

    def __init__(
        self,
        options: InterventionConfig,
        mouse: Any,
        keys: Device | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speed, self._mouse, self._keys = options.speed, mouse, keys
        self._clock, self._sleep = clock, sleep
        self._grip: float | None = None
        self._state: Any = None
        self._seen: float | None = None
        self._buttons: list[int] | None = None
        self._moved = self._reported = -float("inf")

    def read(self) -> Reading:
        typed = Reading() if self._keys is None else self._keys.read()
        self._take_in()  # in a pause too, or the report of a release has no place left
        if typed.paused or typed.stop:
            return typed
        now, axes = self._clock(), self._axes()
        pressed = self._state.buttons
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
        with contextlib.suppress(DeviceLostError):  # the next `read` says so
            self._take_in()  # what waits is of the last one
        self._grip = None
        self._moved = self._reported = -float("inf")
        if self._keys is not None:
            self._keys.episode_begins()

    def close(self) -> None:
        self._mouse.close()
        if self._keys is not None:
            self._keys.close()

    def _axes(self) -> list[float]:
        """Of the last report, if it still holds; a hand that rests on the cap moves none."""
        if self._clock() - self._reported > FRESH_S:
            return [0.0] * len(AXES)
        values = (getattr(self._state, axis) for axis in AXES)
        return [value if abs(value) > DEAD else 0.0 for value in values]

    def _take_in(self) -> None:
        """Note the reports that wait."""
        if self._note_reports() >= FULL:  # the newest were dropped
            self._reported = -float("inf")
            self._sleep(NEXT_REPORT_S)
            self._note_reports()

    def _note_reports(self) -> int:
        """How many there were."""
        noted = 0
        try:
            while noted < MOST_REPORTS:
                self._state = self._mouse.read()
                if self._state.t == self._seen:  # nothing came
                    break
                self._seen, buttons = self._state.t, [*self._state.buttons]
                if self._buttons in (None, buttons):  # else it was of the buttons
                    self._reported = self._clock()
                self._buttons, noted = buttons, noted + 1
        except Exception as error:  # whatever the driver raises when its device has gone
            raise DeviceLostError(
                f"the SpaceMouse does not answer ({type(error).__name__}: {error})"
            ) from error
        return noted


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
