"""A robot's person as a device: what they do takes over from the policy, and stops the arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pld_ray.rollout.device import Reading

if TYPE_CHECKING:  # MuJoCo is imported by those alone who have a robot
    from pld_ray.rollout.robot.env import RobotEnv


class ArmDevice:
    """A `Device` that is the arm's own; whoever closes it leaves that where it is.

    Args:
        robot: does not ask the person while this is open.
    """

    def __init__(self, robot: RobotEnv) -> None:
        self._robot = robot
        robot.asks_person = False

    @property
    def dims(self) -> Sequence[int]:
        device = self._robot.arm.device
        return () if device is None else device.dims

    def read(self) -> Reading:
        return self._robot.arm.poll()

    def episode_begins(self) -> None:
        if (device := self._robot.arm.device) is not None:
            device.episode_begins()

    def close(self) -> None:
        self._robot.asks_person = True
