"""Which members of a critic ensemble are asked, and what is made of their answers.

Numbers in brackets are the formulas of the specification (seed 002, section 14).
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_members(num_critics: int, num_drawn: int, generator: torch.Generator) -> Tensor | None:
    """M of N critics without replacement, [M] int64 on the generator's device; None means all."""
    if num_drawn == num_critics:
        return None
    keys = torch.rand(num_critics, generator=generator, device=generator.device)
    return keys.topk(num_drawn).indices


def reduce_ensemble(q: Tensor, reduction: str, logits: Tensor | None = None) -> Tensor:
    """(7): Q_red over the members, [N, ...] -> [...].

    Args:
        q: one value per member first.
        reduction: `min`, `mean`, or `weighted`: sum_i softmax(logits)_i Q_i (seed 001, 6.2.4).
        logits: [N], of `weighted`.
    """
    if reduction == "min":
        return q.amin(0)
    if reduction == "mean":
        return q.mean(0)
    assert logits is not None, "the weighted reduction needs logits"
    return torch.tensordot(torch.softmax(logits, 0), q, dims=1)


def weighting_loss(q: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    """Mean squared error of sum_i softmax(logits)_i Q_i to y: fits the weights alone, Q detached.

    This is what `weighted` reductions learn from (seed 001, 6.2.4 leaves it open).
    """
    return (reduce_ensemble(q.detach(), "weighted", logits) - target).square().mean()
