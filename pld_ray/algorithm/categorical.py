"""The categorical critic: a distribution over fixed returns instead of one number.

Shapes: B batch, Z atoms, M critics drawn for a target, K candidates of the on-the-fly backup.
Source: C51, Bellemare, Dabney, Munos (2017), with the candidate and the member chosen by expected
value; HL-Gauss, Imani and White (2018), Farebrother et al. (2024).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def choose_distribution(
    log_prob: Tensor,
    atoms: Tensor,
    log_prob_next: Tensor,
    alpha: Tensor | float,
    reduction: str = "min",
    backup_entropy: bool = True,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(10), (11) for distributions: the one to bootstrap from, and its entropy bonus.

    The candidate is the one whose reduced expected value (bonus included) is highest; of the M
    members, `min` takes the distribution with the lowest expectation there, `mean` and `weighted`
    their mixture.

    Args:
        log_prob: of the target critics at the candidates, [M, K, B, Z].
        atoms: returns, [Z].
        log_prob_next: log pi of the candidates, [K, B].
        alpha: temperature.
        reduction: `min`, `mean` or `weighted`, with logits [M].
        backup_entropy: False drops the entropy term.

    Returns:
        probabilities [B, Z], and -alpha * log pi of the chosen candidate [B] (0 without the term).
    """
    probability = log_prob.exp()
    q = probability @ atoms
    if reduction == "min":
        lowest = q.argmin(0)[None, ..., None].expand(1, *probability.shape[1:])
        mixture = probability.gather(0, lowest)[0]
    elif reduction == "mean":
        mixture = probability.mean(0)
    else:
        assert logits is not None, "the weighted reduction needs logits"
        mixture = torch.tensordot(torch.softmax(logits, 0), probability, dims=1)
    bonus = -alpha * log_prob_next if backup_entropy else torch.zeros_like(log_prob_next)
    best = (mixture @ atoms + bonus).argmax(0)
    columns = torch.arange(best.shape[0], device=best.device)
    return mixture[best, columns], bonus[best, columns]


def target_distribution(
    probability: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor, smoothing: float
) -> Tensor:
    """(12) for distributions: what the critics learn; arguments and result as of `project`.

    Args:
        smoothing: 0 moves the whole distribution (C51), else a Gaussian of that standard deviation,
            in atoms, around its expectation takes its place (HL-Gauss).
    """
    if smoothing == 0:
        return project(probability, reward, discount, atoms)
    return gaussian(reward + discount * (probability @ atoms), smoothing, atoms)


def gaussian(mean: Tensor, std: float, atoms: Tensor) -> Tensor:
    """Mass of N(mean, std) nearest to each atom; what lies outside is of the nearest end.

    Args:
        mean: [B], put on the nearest end where it lies outside.
        std: in atoms.
        atoms: evenly spaced, ascending, [Z].
    """
    width = (atoms[1] - atoms[0]) * std * math.sqrt(2.0)
    middles = (atoms[1:] + atoms[:-1]) / 2
    below = 0.5 + 0.5 * torch.erf((middles - mean.clamp(atoms[0], atoms[-1])[:, None]) / width)
    none = torch.zeros_like(mean)[:, None]
    return torch.diff(torch.cat((none, below, none + 1.0), dim=-1))


def project(probability: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Move every atom to r + discount * z and split it over its neighbours (C51).

    Args:
        probability: [B, Z].
        reward: n-step reward, [B].
        discount: gamma^n * (1 - terminated), [B]; the entropy bonus belongs into the reward, times
            the discount.
        atoms: evenly spaced, ascending, [Z]. What falls outside is put on the nearest end.

    Returns:
        probabilities of the target [B, Z], each row summing to 1.
    """
    last = len(atoms) - 1
    moved = reward[:, None] + discount[:, None] * atoms
    place = ((moved - atoms[0]) / (atoms[1] - atoms[0])).clamp(0, last)  # counted in atoms
    below = place.floor().clamp(max=last - 1)
    above = place - below
    target = torch.zeros_like(probability)
    target.scatter_add_(1, below.long(), (1.0 - above) * probability)
    return target.scatter_add_(1, below.long() + 1, above * probability)


def cross_entropy(log_prob: Tensor, target: Tensor) -> Tensor:
    """Sum over the N members of the mean cross entropy; log_prob [N, B, Z], target [B, Z]."""
    return -(log_prob * target).sum(-1).mean(-1).sum()
