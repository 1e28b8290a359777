"""Activations that are computed again in the backward pass, in place of being kept."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.checkpoint import checkpoint

from pld_ray.sharded.shards import UNITS, units

RECOMPUTED = {**UNITS, "act": (*UNITS["act"], "model.backbone.layer*.*")}
"""Policy type -> modules of which only the inputs are kept."""


def has_own_checkpointing(config: Any) -> bool:
    """Whether LeRobot recomputes by itself what a policy's configuration asks for."""
    return hasattr(config, "gradient_checkpointing")


def recompute_activations(policy: Any, policy_type: str) -> None:
    """In place, for a policy that does not do so by itself; names of parameters stay.

    A copy of the policy that is made afterwards would compute with this one's layers.
    """
    if has_own_checkpointing(policy.config):
        return
    for module in units(policy, RECOMPUTED[policy_type]):
        again = functools.partial(checkpoint, module.forward, use_reentrant=False)
        setattr(module, "forward", again)  # noqa: B010
