"""Discrete grippers: their choices, and how a choice becomes a command (HIL-SERL; seed 003).

Each gripper has three choices: open, hold, close. With G grippers a critic scores the 3^G joint
choices; joint index = sum_g choice_g * 3^g, the first gripper's choice counting fastest. `open` and
`close` send the lower and the upper bound of the gripper's dimension. `hold` leaves the base
policy's command as it is; without a base policy it sends the middle of the range, on which a
gripper keeps what it was commanded before.
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


def compose_gripper(
    action: Tensor,
    joint: Tensor,
    gripper_dims: Sequence[int],
    low: Tensor | float = -1.0,
    high: Tensor | float = 1.0,
) -> Tensor:
    """Put the grippers' commands into actions [B, A]; `hold` keeps what stands there.

    Args:
        action: composed continuous action; its gripper dimensions hold the command of `hold`.
        joint: joint choice, [B] int64.
        gripper_dims: dimension of each gripper in the action, G of them.
        low, high: bounds of the action space, scalars or [A].
    """
    dims, choices = list(gripper_dims), split_choices(joint, len(gripper_dims))
    opened, closed = (
        torch.as_tensor(bound).to(action).expand(action.shape[-1])[dims] for bound in (low, high)
    )
    command = torch.where(choices == OPEN, opened, action[:, dims])
    composed = action.clone()
    composed[:, dims] = torch.where(choices == CLOSE, closed, command)
    return composed
