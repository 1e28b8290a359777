"""The equations of Q-chunking, as pure functions over tensors.

Shapes: B windows, H horizon, A action dimensions, N critics, M critics drawn for a target, K
candidates. Sources: Li, Zhou, Levine (2025), "Reinforcement Learning with Action Chunking" (QC);
Park, Li, Levine (2025), "Flow Q-Learning" (FQL); openpi's flow (time 1 is noise, 0 is data).

A masked mean is sum(w * l) / sum(w), 0 where no weight is left. `total` stands for sum(w) where
several learners share a batch: the mean of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pld_ray.algorithm.ensemble import reduce_ensemble

TIME_EXPONENT = 1 / 1.5  # u ** (1 / a) of a uniform u is Beta(a, 1)
TIME_RANGE, TIME_MIN = 0.999, 0.001
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)

Velocity = Callable[[Tensor, float], Tensor]


def masked_mean(values: Tensor, weights: Tensor, total: Tensor | None = None) -> Tensor:
    """sum(w * l) / sum(w); 0 without any weight."""
    total = weights.sum() if total is None else total
    return (values * weights).sum() / total.clamp(min=torch.finfo(values.dtype).tiny)


# --- the flow ------------------------------------------------------------------------------------


def flow_time(uniform: Tensor) -> Tensor:
    """tau = 0.999 * Beta(1.5, 1) + 0.001, of a uniform draw of any shape."""
    return TIME_RANGE * uniform**TIME_EXPONENT + TIME_MIN


def flow_path(chunks: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """x_tau = tau * z + (1 - tau) * a, and the velocity along it, u = z - a.

    Args:
        chunks, noise: a and z, [B, H, A].
        time: tau, [B].
    """
    tau = time[:, None, None]
    return tau * noise + (1.0 - tau) * chunks, noise - chunks


def flow_loss(
    velocity: Tensor, target: Tensor, weights: Tensor, total: Tensor | None = None
) -> Tensor:
    """L_BC: the masked mean over steps of mean_d (v - u)^2.

    Args:
        velocity, target: v and u, [B, H, A].
        weights: valid * positive, [B, H].
    """
    return masked_mean((velocity - target).square().mean(-1), weights, total)


def integrate(velocity: Velocity, noise: Tensor, num_steps: int) -> Tensor:
    """A chunk from noise: Euler from tau = 1 to 0, clipped to [-1, 1] at the end.

    Args:
        velocity: v(x, tau).
        noise: z, [..., H, A].
    """
    x = noise
    for step in range(num_steps):
        x = torch.add(x, velocity(x, 1.0 - step / num_steps), alpha=-1.0 / num_steps)
    return x.clamp(-1.0, 1.0)


# --- critics -------------------------------------------------------------------------------------


def best_candidate(
    chunks: Tensor, q: Tensor, reduction: str, logits: Tensor | None = None
) -> Tensor:
    """a_{argmax_n Q(s, a_n)}, [B, H, A].

    Args:
        chunks: candidates [K, B, H, A].
        q: of each member at each candidate, [N, K, B].
        reduction, logits: over the N members, see `reduce_ensemble`.
    """
    best = reduce_ensemble(q, reduction, logits).argmax(0)
    return chunks[best, torch.arange(chunks.shape[1], device=chunks.device)]


def td_target(
    reward: Tensor,
    discount: Tensor,
    q_next: Tensor,
    reduction: str,
    logits: Tensor | None = None,
) -> Tensor:
    """y = R + gamma^m * mask * agg_j Q'_j(s_{t+m}, a'), [B].

    Args:
        reward: R = sum_{k<m} gamma^k r_{t+k}, [B].
        discount: gamma^m * mask, [B].
        q_next: target critics, [M, B].
    """
    return reward + discount * reduce_ensemble(q_next, reduction, logits)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor, total: Tensor | None = None) -> Tensor:
    """L_C = sum_j sum_b w_b (Q_j - y)^2 / sum_b w_b; q [N, B], target and weights [B]."""
    return masked_mean((q - target).square().sum(0), weights, total)


def categorical_loss(
    log_prob: Tensor, target: Tensor, weights: Tensor, total: Tensor | None = None
) -> Tensor:
    """L_C of categorical critics: the cross entropy in place of the square.

    Args:
        log_prob: [N, B, Z].
        target: distribution over the Z returns, [B, Z].
        weights: [B].
    """
    return masked_mean(-(log_prob * target).sum(-1).sum(0), weights, total)


# --- improvement ---------------------------------------------------------------------------------


def tanh_log_prob(u: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log pi(tanh u) of each value, in nats, of u ~ N(mean, std)."""
    gaussian = -0.5 * ((u - mean) / log_std.exp()).square() - log_std - HALF_LOG_TAU
    slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))  # log(1 - tanh(u)^2)
    return gaussian - slope


def climbing_loss(q: Tensor, reduction: str, logits: Tensor | None = None) -> Tensor:
    """L_A of `bptt`: -mean max_i Q(s, a_i); q of each member at each draw, [N, K, B]."""
    return -reduce_ensemble(q, reduction, logits).amax(0).mean()


def sac_loss(
    log_prob: Tensor, q: Tensor, alpha: Tensor, reduction: str, logits: Tensor | None = None
) -> Tensor:
    """L_A of `sac`: mean (alpha log pi(a | s) - Q(s, a)); log_prob [B], q [N, B]."""
    return (alpha * log_prob - reduce_ensemble(q, reduction, logits)).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float | Tensor) -> Tensor:
    """-log alpha * mean (log pi + H_target): alpha falls while the entropy is above its target."""
    return -log_alpha.squeeze() * (log_prob.detach() + target_entropy).mean()


def distill_loss(
    chunks: Tensor,
    flow_chunks: Tensor,
    q: Tensor,
    alpha: float,
    reduction: str,
    logits: Tensor | None = None,
) -> Tensor:
    """L_A of `distill`: alpha * mean (mu(s, z) - flow(s, z))^2 - mean Q(s, mu(s, z)).

    Args:
        chunks: of the one-step policy, [B, H, A].
        flow_chunks: of the flow from the same noise, without gradient, [B, H, A].
        q: critics at the clipped `chunks`, [N, B].
        alpha: weight of the distance.
    """
    distance = (chunks - flow_chunks).square().mean()
    return alpha * distance - reduce_ensemble(q, reduction, logits).mean()
