"""What the numbers of ALOHA's 14 columns mean: as recorded, or as pi0 was trained on them.

`openpi` is what `AlohaInputs(adapt_to_pi=True)` of openpi's `policies/aloha_policy.py` makes of a
recorded state and action: shoulders and elbows turn the other way round, and a gripper is an angle
in place of ALOHA's linear opening.

Constants: Interbotix' gripper (a horn of 22 mm and an arm of 36 mm drive fingers whose opening lies
between 18.44 and 58.00 mm), pi0's encoder range (2405 to 3110 of 4096, zero at 2048), the range of
the follower's gripper joint.
"""

from __future__ import annotations

import numpy as np

FLIPPED = (1, 2, 8, 9)  # shoulders and elbows
GRIPPERS = (6, 13)
OPENING = (0.01844, 0.05800)  # m
ANGLE = (0.5476, 1.6296)  # rad
FOLLOWER_JOINT = (-0.6213, 1.4910)  # rad
ARM, HORN = 0.036, 0.022  # m


def openpi_state(state: np.ndarray) -> np.ndarray:
    """Recorded positions [T, 14] -> pi0's; grippers 0 (closed) to 1 in its angular range."""
    state = flipped(state)
    opening = OPENING[0] + state[:, GRIPPERS] * (OPENING[1] - OPENING[0])
    sine = (HORN**2 + opening**2 - ARM**2) / (2 * HORN * opening)
    angle = np.arcsin(np.clip(sine, -1.0, 1.0))
    state[:, GRIPPERS] = (angle - ANGLE[0]) / (ANGLE[1] - ANGLE[0])
    return state


def openpi_action(action: np.ndarray) -> np.ndarray:
    """Recorded commands [T, 14] -> pi0's; grippers as the angle that pi0 predicts, in rad."""
    action = flipped(action)
    low, high = FOLLOWER_JOINT
    action[:, GRIPPERS] = low + action[:, GRIPPERS] * (high - low) - ANGLE[0]
    return action


def flipped(values: np.ndarray) -> np.ndarray:
    """A copy in which shoulders and elbows turn the other way round."""
    values = values.copy()
    values[:, FLIPPED] *= -1.0
    return values
