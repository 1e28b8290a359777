"""A device in a person's hand, and the person who holds it, at one environment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pld_ray.errors import UserError
from pld_ray.rollout.intervention import NOTHING, Turn, Verdict

log = logging.getLogger("pld_ray")

PAUSE_S = 0.05
"""Between two looks at a device while the person pauses."""


class DeviceError(UserError, ValueError):
    """The device is not there, or does not fit; the message says what to do."""


class DeviceLostError(UserError, OSError):
    """The device was there and has gone."""


@dataclass(frozen=True)
class Reading:
    """What a person does at this moment.

    Attributes:
        action: dimension -> command in [-1, 1] of the action's range; dimensions that are missing
            keep the base policy's command. None: hands off.
        verdict: how the episode ends, where the person has just said so.
        paused: nothing shall move.
        stop: a robot shall hold still now, and go on when it is asked to.
    """

    action: Mapping[int, float] | None = None
    verdict: Verdict | None = None
    paused: bool = False
    stop: bool = False


class Device(Protocol):
    """A keyboard, a gamepad, ...; it is read once per step."""

    @property
    def dims(self) -> Sequence[int]:
        """Action dimensions that it can command."""
        ...

    def read(self) -> Reading:
        """What is pressed now.

        Raises:
            DeviceLostError: it has gone.
        """
        ...

    def episode_begins(self) -> None:
        """Forget what was commanded in the last one."""

    def close(self) -> None:
        """Let go of it; safe to call again."""


def read_unpaused(
    device: Device, on_wait: Callable[[], None], sleep: Callable[[float], None] = time.sleep
) -> Reading:
    """What the person does once they do not pause; see `DevicePerson` for the arguments.

    Raises:
        DeviceLostError: it has gone.
    """
    while (reading := device.read()).paused:
        on_wait()
        sleep(PAUSE_S)
    return reading


class DevicePerson:
    """An `Intervenor`: whoever holds the device at the only environment.

    A device that goes in an episode is said aloud, once; the episode and all that follow go on
    autonomously.

    Args:
        device: in the person's hand.
        low, high: bounds of the action space, [A].
        sleep: of this machine, while the person pauses.

    Attributes:
        on_wait: called again and again while they pause; it may raise to end that.
    """

    def __init__(
        self,
        device: Device,
        low: np.ndarray,
        high: np.ndarray,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device: Device | None = device
        self._low, self._high = low, high
        self._sleep = sleep
        self.on_wait: Callable[[], None] = lambda: None

    def begin(self, env_index: int) -> None:
        if self._device is not None:
            self._device.episode_begins()

    def intervene(
        self, observation: Mapping[str, np.ndarray], stepping: np.ndarray, env_steps: int
    ) -> Turn:
        if self._device is None or not stepping[0]:
            return NOTHING
        try:
            reading = read_unpaused(self._device, self.on_wait, self._sleep)
        except DeviceLostError as error:
            log.warning("%s: nobody can intervene any more, training goes on without", error)
            self.close()
            return NOTHING
        actions = {}
        if reading.action is not None:
            actions[0] = self._executed(reading.action, observation["base_action"][0])
        verdicts = {} if reading.verdict is None else {0: reading.verdict}
        return Turn(actions, verdicts) if actions or verdicts else NOTHING

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _executed(self, command: Mapping[int, float], base_action: np.ndarray) -> np.ndarray:
        """In units of the action space [A]."""
        action = base_action.copy()
        for dim, value in command.items():
            middle, half = (self._low + self._high)[dim] / 2, (self._high - self._low)[dim] / 2
            action[dim] = middle + half * value
        return action


def check_dims(name: str, dims: Sequence[int], fixed: Sequence[int], action_dim: int) -> None:
    """Refuse a device that cannot command every dimension which is not given up.

    Args:
        name: of the device.
        dims: that it commands.
        fixed: dimensions that the person leaves to the base policy.
        action_dim: of the environment.

    Raises:
        DeviceError: naming the dimensions.
    """
    beyond = sorted({*dims, *fixed} - set(range(action_dim)))
    if beyond:
        raise DeviceError(
            f"intervention.device={name} commands dimensions {list(dims)} and fixed_dims is "
            f"{list(fixed)}, but the action has {action_dim} dimensions: choose another device"
        )
    missing = [d for d in range(action_dim) if d not in dims and d not in fixed]
    if missing:
        raise DeviceError(
            f"intervention.device={name} has too few axes: it commands dimensions {list(dims)} of "
            f"{action_dim}, not {missing}; leave those to the base policy with "
            f"--intervention.fixed_dims={missing}, or choose another device"
        )
