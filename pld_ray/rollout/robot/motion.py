"""Which joints an arm is sent to: within their limits, its workspace and a step of where it is."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from pld_ray.config.arm import ArmConfig
from pld_ray.rollout.robot.kinematics import Kinematics

SHARES = (1.0, 0.5, 0.25, 0.125)
"""Of a step, of which the greatest is taken that leaves the hand in its bounds."""
TOLERANCE_M = 1e-4


class Motion:
    """The last command, and the next one.

    Steps begin at the last command and not at what is measured: an arm that hangs a little below
    its command would sink with every step. Where it cannot follow, because something is in its way,
    the command stays within `max_joint_step` of the arm.

    Args:
        kinematics: of the arm.
        options: steps and bounds.
        q: the first command [n], rad.

    Raises:
        ValueError: the hand is out of its bounds there.
    """

    def __init__(self, kinematics: Kinematics, options: ArmConfig, q: np.ndarray) -> None:
        self._kinematics, self._options = kinematics, options
        self._low, self._high = np.array(options.bounds_low), np.array(options.bounds_high)
        self._q = q
        if self.excess(q) > 0:
            x, y, z = kinematics.pose(q)[0]
            raise ValueError(
                f"env.arm.rest_pose has the hand at [{x:.3f}, {y:.3f}, {z:.3f}], out of "
                "env.arm.bounds_low and bounds_high: correct one of them"
            )

    def start(self, q: np.ndarray) -> None:
        """The arm has been sent to `q` [n] by now."""
        self._q = q

    def step(self, action: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """The next command [n].

        Args:
            action: [6] in [-1, 1], steps of the hand and turns.
            measured: where the joints are [n].
        """
        here = self._near(self._q, measured)
        position, rotation = self._kinematics.pose(here)
        goal = np.clip(position + self._options.step_m * action[:3], self._low, self._high)
        turn = Rotation.from_rotvec(self._options.step_rad * action[3:]).as_matrix()
        there = self._near(self._kinematics.reach(here, goal, turn @ rotation), measured)
        allowed = max(TOLERANCE_M, self.excess(here))
        self._q = here
        for share in SHARES:
            q = here + share * (there - here)
            if self.excess(q) <= allowed:
                self._q = q
                break
        return self._q

    def approach(self, goal: np.ndarray, distance: float, measured: np.ndarray) -> np.ndarray:
        """The next command [n] on the straight way of the joints to a goal.

        Args:
            goal: [n].
            distance: by which the fastest joint moves, rad.
            measured: where the joints are [n].
        """
        way = goal - self._q
        longest = float(np.abs(way).max())
        q = goal if longest <= distance else self._q + way * distance / longest
        self._q = self._near(q, measured)
        return self._q

    def excess(self, q: np.ndarray) -> float:
        """Metres by which the hand is out of its bounds."""
        position, _ = self._kinematics.pose(q)
        return float(np.max([self._low - position, position - self._high, np.zeros(3)]))

    def _near(self, q: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """Within the limits, and within a step of where the arm is.

        An arm that is beyond a limit already is sent back to it.
        """
        most = self._options.max_joint_step
        near = np.clip(q, measured - most, measured + most)
        return np.clip(near, self._kinematics.low, self._kinematics.high)
