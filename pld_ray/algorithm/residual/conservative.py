"""Cal-QL's conservative regulariser (20), and CQL's, as pure functions over tensors.

Source: Nakamoto et al., Cal-QL (2023), equation 6, on CQL(H) of Kumar et al. (2020) with importance
weights; seed 002, section 8. Shapes: N critics, S sampled actions a kind, B batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def calibrate(q: Tensor, mc_return: Tensor) -> Tensor:
    """max(Q(x, a_pi), G): a Q below the return that the data reached is not pushed further down.

    Args:
        q: [N, S, B].
        mc_return: G, discounted return-to-go of the data, [B]; -inf switches the bound off (CQL).
    """
    return torch.maximum(q, mc_return)


def conservative_regularizer(
    q_data: Tensor,
    q_random: Tensor,
    q_policy: Tensor,
    q_next_policy: Tensor,
    log_prob_policy: Tensor,
    log_prob_next_policy: Tensor,
    log_density_random: float,
    mc_return: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """(20): T * logsumexp(values / T) - Q(x, a_D) per critic, averaged over the batch.

    values = { Q(x, a_rand) - log u,  max(Q(x, a_pi), G) - log pi,  max(Q(x, a_pi'), G) - log pi' }.

    Args:
        q_data: Q at the stored actions, [N, B].
        q_random: at uniform actions, [N, S, B]; not bounded by G.
        q_policy: at actions sampled at x, [N, S, B].
        q_next_policy: at actions sampled at x', evaluated at x, [N, S, B].
        log_prob_policy, log_prob_next_policy: their log pi, [S, B].
        log_density_random: log u of a uniform action.
        mc_return: G, [B]; -inf gives CQL.
        temperature: T, `calql_lse_beta`, > 0.

    Returns:
        one value per critic, [N].
    """
    values = torch.cat(
        (
            q_random - log_density_random,
            calibrate(q_policy, mc_return) - log_prob_policy,
            calibrate(q_next_policy, mc_return) - log_prob_next_policy,
        ),
        dim=1,
    )
    out_of_distribution = temperature * torch.logsumexp(values / temperature, dim=1)
    return (out_of_distribution - q_data).mean(-1)


def uniform_log_density(num_dims: float) -> float:
    """log u of a residual drawn uniformly from [-1, 1]^num_dims, in nats."""
    return -num_dims * math.log(2.0)


def bound_rate(q: Tensor, mc_return: Tensor) -> Tensor:
    """Share of policy actions whose Q lies below G and is therefore left alone, a scalar."""
    return (q < mc_return).float().mean()


def lagrange_loss(log_multiplier: Tensor, regularizer: Tensor, target_gap: float) -> Tensor:
    """-exp(log_multiplier) * sum_i (regularizer_i - target_gap): raises alpha_c above the gap.

    Args:
        log_multiplier: log alpha_c, a scalar.
        regularizer: per critic [N], detached here.
        target_gap: tau_c, the gap between out-of-distribution and data Q that is allowed.
    """
    return -(log_multiplier.exp() * (regularizer.detach() - target_gap)).sum()
