"""Who stands beside an arm: asked before it moves, able to stop it and to take over."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pld_ray.rollout.device import (
    PAUSE_S,
    Device,
    DeviceError,
    DeviceLostError,
    Reading,
    read_unpaused,
)
from pld_ray.rollout.keyboard import open_terminal, tell_the_person
from pld_ray.rollout.robot.errors import ArmError

if TYPE_CHECKING:  # MuJoCo is imported by those alone who have a robot
    from pld_ray.rollout.robot.env import RobotEnv


class Person:
    """Of one arm, with a device in their hand or in a terminal.

    Args:
        waited_for: every episode, and the arm after a stop, waits for Enter.
        stop: holds the arm, for a reason in words.

    Attributes:
        device: in their hand, if there is one.
        on_wait: called again and again while they, or the arm, are waited for; it may raise to end
            that.
    """

    def __init__(self, waited_for: bool, stop: Callable[[str], None]) -> None:
        self._waited_for, self._stop = waited_for, stop
        self.device: Device | None = None
        self.on_wait: Callable[[], None] = lambda: None

    def poll(self) -> Reading:
        """What they do now, after a pause; a device that has gone stops the arm."""
        if self.device is None:
            return Reading()
        try:
            reading = read_unpaused(self.device, self.on_wait)
        except DeviceLostError as error:
            self._stop(str(error))
            self.leave()  # what is left of it would take the terminal's keys
            return Reading()
        if reading.stop:
            self._stop("the person said so")
        return reading

    def confirm(self, what: str, stopped: bool = False) -> None:
        """Wait until they press Enter; returns at once where nobody is waited for.

        What they pressed before they were asked is no answer.

        Args:
            what: is said to them.
            stopped: the arm has; whoever holds a device is asked then, waited for or not. Where
                that device goes meanwhile, the terminal asks whoever is waited for.

        Raises:
            ArmError: there is no terminal to ask in.
        """
        has_device = self.device is not None
        if has_device and (self._waited_for or stopped):
            self._ask_by_device(what)
        # a device that goes stops the arm, which asks again: unless it has stopped already
        if self._waited_for and self.device is None and (stopped or not has_device):
            ask_in_terminal(what, self.on_wait)

    def _ask_by_device(self, what: str) -> None:
        """Say it, and wait for Enter, or until the device has gone."""
        self.poll()  # a stop is heeded, a verdict is not
        if self.device is None:
            return
        self.device.episode_begins()
        tell_the_person(what)
        while self.device is not None and self.poll().verdict != "success":
            self.on_wait()
            time.sleep(PAUSE_S)

    def leave(self) -> None:
        """Close their device."""
        if self.device is not None:
            self.device.close()
            self.device = None


class ArmDevice:
    """The person's device as an intervenor's; whoever closes it leaves the person theirs.

    Args:
        robot: the environment, which does not ask the person while this is open; another one after
            it has been made anew.
    """

    def __init__(self, robot: Callable[[], RobotEnv]) -> None:
        self._robot = robot
        robot().asks_person = False

    @property
    def dims(self) -> Sequence[int]:
        device = self._robot().arm.person.device
        return () if device is None else device.dims

    def read(self) -> Reading:
        robot = self._robot()
        robot.asks_person = False
        return robot.arm.person.poll()

    def episode_begins(self) -> None:
        if (device := self._robot().arm.person.device) is not None:
            device.episode_begins()

    def close(self) -> None:
        self._robot().asks_person = True


def terminal() -> int:
    """A descriptor of the terminal in which a person without a device is asked.

    Raises:
        ArmError: there is none.
    """
    try:
        return open_terminal()
    except DeviceError as error:
        raise ArmError(
            "env.arm.wait_for_person=true asks in the terminal of this command, or of pld-ray "
            "actor, and there is none: start it in a terminal (with ssh -t), or set it to false"
        ) from error


def ask_in_terminal(what: str, on_wait: Callable[[], None]) -> None:
    """Print a sentence where the person sits, and wait for Enter.

    What was typed before is dropped.

    Args:
        what: the sentence.
        on_wait: called again and again meanwhile.

    Raises:
        ArmError: there is no terminal, or it goes.
    """
    fd = terminal()
    try:
        with contextlib.suppress(termios.error):  # it is no terminal, or has gone
            termios.tcflush(fd, termios.TCIFLUSH)
        tell_the_person(what)
        read = b" "
        while read not in (b"\n", b"\r", b""):
            on_wait()
            if select.select([fd], [], [], PAUSE_S)[0]:
                read = os.read(fd, 1)
        if not read:
            raise ArmError("the terminal in which env.arm.wait_for_person asks is gone")
    finally:
        os.close(fd)
