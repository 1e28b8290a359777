"""The demonstrator whose pick-and-place the embedded policy imitates, and a person in simulation.

For the imitator its perception errs, deliberately; a person's does not. Its action is a function of
the present observation alone, like the imitator's: no clock, no phase counter. So every state has
one right answer, a residual that shifts the arm by some centimetres meets a policy that still knows
what comes next, and a person can take over anywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from envs.experts import Perception

STEP_LENGTH = 0.05  # metres that an action of 1 asks for
OPEN, CLOSE = -1.0, 1.0
UP = np.array([0.0, 0.0, 1.0])

GAIN = 1.5  # answers an offset of 2 cm by an action of 0.6, within a residual's reach
HOVER = 0.10  # approach this far above the grasp
DESCEND_WITHIN = 0.045  # of the seen target in the plane: descend; a shifted arm still descends
DESCENT = 0.5  # action while descending: slow enough to centre before the fingers reach the object
GRASP_TOLERANCE = 0.012  # close below this height above the grasp
HELD_WITHIN = 0.03  # the hand holds the object if it is this near in the plane


@dataclasses.dataclass(frozen=True)
class Grasp:
    """Where a kind of object is grasped and how it is put down, metres.

    Attributes:
        height: of the hand above the object's origin.
        opening: between the fingers when they hold the object (0.08 open, 0 closed).
        rest: height of the standing object's origin above the goal's.
        offset: in the plane, from the object to the hand; a bowl is held by its rim.
        shut: opening below which the fingers hold nothing; 0 where they may hold a thin rim.
        carry: height of the hand above the goal's origin on the way.
        drop: height of the grasped point above the goal's origin when the gripper opens.
        over_goal: this near in the plane, the hand goes down.
    """

    height: float
    opening: float
    rest: float
    offset: tuple[float, float] = (0.0, 0.0)
    shut: float = 0.014
    carry: float = 0.30
    drop: float = 0.15
    over_goal: float = 0.03


GRASPS = {  # by words of the task's name, the first that are all in it
    "milk basket": Grasp(0.030, 0.053, 0.074),  # LIBERO's carton is wider than the embedded one
    "orange": Grasp(0.030, 0.053, 0.074),
    "butter": Grasp(0.0, 0.039, 0.013),
    "can": Grasp(0.005, 0.049, 0.040),
    "milk": Grasp(0.045, 0.040, 0.061),
    "bread": Grasp(0.0, 0.040, 0.023),
    "cereal": Grasp(0.045, 0.027, 0.075),
    "bbq": Grasp(0.012, 0.046, 0.060),
    "bowl": Grasp(
        0.032, 0.007, -0.005, (0.0, 0.048), shut=0.0, carry=0.16, drop=0.018, over_goal=0.012
    ),
}


class Demonstrator:
    """Proportional control to a waypoint that follows from the observation.

    Args:
        env: a `LiberoEnv` with a task of `GRASPS`.
        perception: its error; the seen place of the object is a fixed function of the true one,
            so an imitator can learn it, and it is systematic, so a residual can learn to undo it.
    """

    def __init__(self, env: Any, perception: Perception) -> None:
        if perception.bias_std != 0.0:
            raise ValueError("the demonstrator's error must be systematic: set bias_std to 0")
        self._env = env
        self._perception = perception
        self._grasp = find_grasp(env.task_name)
        self._shift = np.array([*self._grasp.offset, 0.0])  # from the object to the hand

    def true_move(self) -> np.ndarray:
        """What a demonstrator without error would command in the plane [2], in [-1, 1]."""
        view = self._env.expert_view()
        reach = self._towards(view["target_pos"], view["eef_pos"] - self._shift)
        return np.clip(reach[:2], -1.0, 1.0)

    def is_lifted(self) -> bool:
        """The object has left the table."""
        view = self._env.expert_view()
        return bool(view["target_pos"][2] - view["goal_pos"][2] > self._grasp.rest + 0.015)

    def remaining(self) -> float:
        """Metres to go: the hand to the grasp, the object up to where it is carried, across to its
        goal and down to where it is let go; where it is only to be lifted, up alone."""
        view, grasp = self._env.expert_view(), self._grasp
        target, goal = view["target_pos"], view["goal_pos"]
        reach = float(np.linalg.norm(target + self._shift + grasp.height * UP - view["eef_pos"]))
        height = float(target[2] - goal[2])
        up = max(0.0, grasp.carry - height)
        if view["lift_only"]:
            return reach + up
        across = float(np.hypot(*(goal - target)[:2]))
        if across < grasp.over_goal:
            return reach + across + max(0.0, height - grasp.drop)
        return reach + across + up + grasp.carry - grasp.drop

    def act(self) -> np.ndarray:
        """The action [7] float32 in [-1, 1] for the present state of the environment."""
        view = self._env.expert_view()
        move, gripper = self._plan(view)
        action = np.zeros(7, dtype=np.float32)
        action[:3] = np.clip(move, -1.0, 1.0)
        action[6] = gripper
        return action

    def _plan(self, view: dict[str, Any]) -> tuple[np.ndarray, float]:
        """Translation [3] in action units and gripper command."""
        hand, target = view["eef_pos"], view["target_pos"] + self._shift
        opening = float(view["gripper_qpos"][0] - view["gripper_qpos"][1])
        reach = target - hand
        beside = np.hypot(*reach[:2]) < HELD_WITHIN and abs(reach[2] + self._grasp.height) < 0.03
        if beside and self._grasp.shut < opening < self._grasp.opening + 0.006:
            return self._deliver(hand, view)
        grasp = np.array([*self._see(view), target[2] + self._grasp.height])
        if opening < self._grasp.shut and hand[2] - grasp[2] < HOVER - 0.03:
            # grasped nothing: rise with the gripper shut, try again from above
            return self._towards(grasp + HOVER * UP, hand), CLOSE
        return self._approach(hand, grasp)

    def _approach(self, hand: np.ndarray, grasp: np.ndarray) -> tuple[np.ndarray, float]:
        """Over the seen object, down to it, close."""
        away = np.hypot(*(grasp - hand)[:2])
        above = hand[2] - grasp[2]
        if away > DESCEND_WITHIN:
            return self._towards(grasp + HOVER * UP, hand), OPEN
        move = self._towards(grasp, hand)
        move[2] = np.clip(move[2], -DESCENT, DESCENT)
        return move, CLOSE if above < GRASP_TOLERANCE else OPEN

    def _deliver(self, hand: np.ndarray, view: dict[str, Any]) -> tuple[np.ndarray, float]:
        """Up, across to the goal, down into it, let go."""
        grasp = self._grasp
        over = view["goal_pos"] + self._shift
        carry = over[2] + grasp.carry
        if view["lift_only"]:
            return self._towards(np.array([*hand[:2], carry]), hand), CLOSE
        away = np.hypot(*(over - hand)[:2])
        if away < grasp.over_goal:
            drop = over[2] + grasp.drop + grasp.height
            down = self._towards(np.array([*over[:2], drop]), hand)
            return down, OPEN if hand[2] < drop + 0.015 else CLOSE
        move = self._towards(np.array([*over[:2], carry]), hand)
        clearance = hand[2] - (carry - 0.12)  # start across while still rising
        move[:2] = np.clip(move[:2], -1, 1) * np.clip(clearance / 0.06, 0.0, 1.0)
        return move, CLOSE

    def _see(self, view: dict[str, Any]) -> np.ndarray:
        seen = self._perception.see(view["target_pos"][:2], view["region_center"], np.zeros(2))
        return seen + self._shift[:2]

    def _towards(self, waypoint: np.ndarray, hand: np.ndarray) -> np.ndarray:
        return GAIN * (waypoint - hand) / STEP_LENGTH


def find_grasp(task_name: str) -> Grasp:
    """The grasp for a task.

    Raises:
        ValueError: no grasp is known for the task's object.
    """
    for words, grasp in GRASPS.items():
        if set(words.split()) <= set(task_name.split("_")):
            return grasp
    raise ValueError(f"No grasp for task {task_name!r}: add its object to GRASPS, {list(GRASPS)}.")
