"""Discrete grippers: their choices, and how a choice becomes a command (HIL-SERL; seed 003).

Each gripper has three choices: open, hold, close. With G grippers a critic scores the 3^G joint
choices; joint index = sum_g choice_g * 3^g. Composition with a base policy: `hold` leaves the base
policy's gripper command as it is, `open` and `close` replace it by -1 and +1. Without a base policy
`hold` sends 0, which keeps the gripper where it was commanded before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

OPEN, HOLD, CLOSE = 0, 1, 2
NUM_CHOICES = 3


def num_joint_choices(num_grippers: int) -> int:
    """3^G."""
    return NUM_CHOICES**num_grippers


def hold_all(num_grippers: int) -> int:
    """Joint index of holding every gripper."""
    return sum(HOLD * NUM_CHOICES**g for g in range(num_grippers))


def split_choices(joint: Tensor, num_grippers: int) -> Tensor:
    """Joint indices [...] int64 -> the choice of each gripper [..., G] int64."""
    return torch.stack([joint // NUM_CHOICES**g % NUM_CHOICES for g in range(num_grippers)], dim=-1)


def compose_gripper(action: Tensor, joint: Tensor, gripper_dims: Sequence[int]) -> Tensor:
    """Put the grippers' commands into actions [B, A]; `hold` keeps what stands there.

    Args:
        action: composed continuous action; its gripper dimensions hold the base policy's command.
        joint: joint choice, [B] int64.
        gripper_dims: dimension of each gripper in the action, G of them.
    """
    choices = split_choices(joint, len(gripper_dims))
    composed = action.clone()
    for g, dim in enumerate(gripper_dims):
        command = (choices[:, g] - HOLD).to(action.dtype)
        held = choices[:, g] == HOLD
        composed[:, dim] = torch.where(held, action[:, dim], command)
    return composed
