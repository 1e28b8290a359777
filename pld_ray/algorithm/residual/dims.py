"""Which dimensions of an action carry a residual."""

from __future__ import annotations

import torch
from torch import Tensor


def residual_dims(factors: list[float], action_dim: int) -> Tensor:
    """Factors per action dimension [A]; an empty list means 1 for every dimension.

    Raises:
        ValueError: the list has another length than A.
    """
    if not factors:
        return torch.ones(action_dim)
    if len(factors) != action_dim:
        raise ValueError(
            f"algorithm.residual_dims has {len(factors)} entries but actions have {action_dim} "
            "dimensions: give one factor per dimension, or an empty list for all ones"
        )
    return torch.tensor(factors, dtype=torch.float32)


def without_grippers(dims: Tensor, gripper_dims: list[int]) -> Tensor:
    """`residual_dims` with 0 where a discrete gripper acts.

    Raises:
        ValueError: a gripper dimension that the action does not have.
    """
    if max(gripper_dims) >= len(dims):
        raise ValueError(
            f"algorithm.gripper_dims={gripper_dims}: the action has dimensions 0 to "
            f"{len(dims) - 1}; name the gripper's, or set gripper=continuous"
        )
    dims = dims.clone()
    dims[gripper_dims] = 0.0
    return dims
