"""A scripted expert for the pick-and-place tasks, with a camera that may be badly calibrated."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

STEP_LENGTH = 0.05  # metres which an action of 1 asks for
OPEN, CLOSE = -1.0, 1.0

HOVER = 0.10  # approach this far above the grasp
PALM_CLEARANCE = 0.04  # from the fingertips' centre up to the palm: tall things are held higher


@dataclasses.dataclass(frozen=True)
class Perception:
    """How the expert's idea of the target's place errs.

    The seen position is ``c + (1 + scale_error) R(angle) (xy - c) + b`` with c the centre of the
    region where targets start, R a rotation in the plane and b drawn anew for each episode.

    Attributes:
        scale_error: relative error of distances from the centre; 0.35 puts 8 cm at 10.8 cm.
        angle: rotation about the centre, radians.
        bias_std: standard deviation of each component of b, metres.
        offset: constant part of b, metres.
    """

    scale_error: float = 0.0
    angle: float = 0.0
    bias_std: float = 0.0
    offset: tuple[float, float] = (0.0, 0.0)

    def see(self, xy: np.ndarray, center: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """The perceived position [2] of something at `xy` [2]."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        rotation = np.array([[cos, -sin], [sin, cos]])
        away = (1.0 + self.scale_error) * rotation @ (xy - center)
        return center + away + bias + self.offset


@dataclasses.dataclass(frozen=True)
class Grip:
    """How one kind of thing is taken and put down, metres.

    Attributes:
        offset: in the plane, from the thing's centre to the hand; a bowl is held by its rim.
        below_top: the hand's depth below the thing's top; None is its middle, or higher if the
            palm would touch.
        lift: how far the hand rises before it crosses over.
        release: height of the hand above the goal's origin when the gripper opens.
        closing: steps that the gripper needs to hold the thing; a thin rim more than a can.
    """

    offset: tuple[float, float] = (0.0, 0.0)
    below_top: float | None = None
    lift: float = 0.17
    release: float = 0.13
    closing: int = 5


BIN = Grip()
BASKET = Grip(lift=0.24, release=0.19, closing=8)
BOWL_ON_PLATE = Grip(offset=(0.0, 0.048), below_top=0.020, lift=0.15, release=0.05, closing=12)


def choose_grip(target: str, goal: str) -> Grip:
    """The grip for an object and the place it goes to, by their names."""
    if "bowl" in target:
        return BOWL_ON_PLATE
    return BASKET if "basket" in goal else BIN


class PickPlaceExpert:
    """Hovers over the target, descends, grasps, lifts and, unless lifting is the task, delivers.

    It looks once, when the episode starts, and believes what it saw. Actions are those of
    `LiberoEnv`: [7] float32 in [-1, 1], proportional control of the hand's position.

    Args:
        env: a `LiberoEnv` (anything with its `expert_view`).
        gain: proportional gain; 1 asks to arrive within one step where the limit allows.
        perception: the error model; the default sees exactly.
        action_noise: standard deviation of Gaussian noise on the three translations.
    """

    def __init__(
        self,
        env: Any,
        gain: float = 2.0,
        perception: Perception | None = None,
        action_noise: float = 0.0,
    ) -> None:
        self._env = env
        self._gain = gain
        self._perception = perception or Perception()
        self._noise = action_noise
        self._rng = np.random.default_rng()
        self._phase: int | None = None

    def reset(self, rng: np.random.Generator) -> None:
        """Look at the scene and draw this episode's bias. Call it after each `env.reset`."""
        view = self._env.expert_view()
        self._rng = rng
        bias = self._perception.bias_std * rng.standard_normal(2)
        seen = self._perception.see(view["target_pos"][:2], view["region_center"], bias)
        self._grip = choose_grip(view["target"], view["goal"])
        self._grasp = np.array(
            [*(seen + self._grip.offset), view["target_pos"][2] + self._height(view["target_top"])]
        )
        self._lift_only = view["lift_only"]
        self._phase = 0
        self._waited = 0

    def act(self) -> np.ndarray:
        """The action [7] float32 for the present state of the environment."""
        if self._phase is None:
            raise RuntimeError("Call PickPlaceExpert.reset(rng) before act().")
        view = self._env.expert_view()
        hand = view["eef_pos"]
        waypoint, gripper, arrived = self._plan(hand, view["goal_pos"])
        self._waited += 1
        if arrived:
            self._phase += 1
            self._waited = 0
        action = np.zeros(7)
        action[:3] = np.clip(self._gain * (waypoint - hand) / STEP_LENGTH, -1.0, 1.0)
        if self._noise > 0.0:
            action[:3] += self._noise * self._rng.standard_normal(3)
        action[6] = gripper
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _height(self, target_top: float) -> float:
        """Of the hand over the target's origin when the gripper closes."""
        if self._grip.below_top is not None:
            return target_top - self._grip.below_top
        return max(0.0, target_top - PALM_CLEARANCE)

    def _plan(self, hand: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Waypoint [3], gripper command and whether the phase is over (reached or timed out)."""
        grasp, waited = self._grasp, self._waited
        above = np.array([0.0, 0.0, 1.0])
        if self._phase == 0:  # over the target
            waypoint = grasp + HOVER * above
            near = _flat(waypoint - hand) < 0.01 and abs(waypoint[2] - hand[2]) < 0.03
            return waypoint, OPEN, near or waited > 60
        if self._phase == 1:  # down to it
            return grasp, OPEN, abs(hand[2] - grasp[2]) < 0.008 or waited > 40
        if self._phase == 2:  # close the gripper
            return grasp, CLOSE, waited >= self._grip.closing
        carry = grasp[2] + self._grip.lift
        if self._phase == 3:  # up
            waypoint = np.array([*grasp[:2], carry])
            return waypoint, CLOSE, not self._lift_only and waypoint[2] - hand[2] < 0.03
        over = goal[:2] + self._grip.offset
        if self._phase == 4:  # across to the goal
            waypoint = np.array([*over, carry])
            return waypoint, CLOSE, _flat(waypoint - hand) < 0.02 or waited > 60
        waypoint = np.array([*over, goal[2] + self._grip.release])
        if self._phase == 5:  # down to it
            return waypoint, CLOSE, abs(hand[2] - waypoint[2]) < 0.012 or waited > 25
        return waypoint, OPEN, False  # let go


def _flat(vector: np.ndarray) -> float:
    return float(np.hypot(vector[0], vector[1]))
