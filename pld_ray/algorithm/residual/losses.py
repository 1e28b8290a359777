"""The equations of residual SAC, as pure functions over tensors.

Numbers in brackets are the formulas of the specification (seed 002, section 14). Shapes: B batch,
A action dimensions, N critics, M critics drawn for a target, K candidates of the on-the-fly backup.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pld_ray.algorithm.ensemble import reduce_ensemble

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
MIN_SCALE_IN_ENTROPY = 1e-3  # a schedule may start at beta = 0, where log(beta) does not exist


# --- acting --------------------------------------------------------------------------------------


def sample_residual(
    mean: Tensor,
    log_std: Tensor,
    noise: Tensor,
    residual_dims: Tensor,
    use_tanh_squash: bool = True,
) -> tuple[Tensor, Tensor]:
    """(2), (8): delta = tanh(u), u = mean + std * noise, and log pi(delta | x).

    Without `use_tanh_squash` delta is u clipped to [-1, 1] and the density is that of u.

    Args:
        mean, log_std: of u, [B, A].
        noise: standard normal, [B, A] or [K, B, A]; one distribution serves all K draws.
        residual_dims: [A]; a dimension with factor 0 carries no residual. Its delta is 0 and it
            has no part in the log-probability.

    Returns:
        delta in [-1, 1], shaped as `noise`, and log_prob in nats, without the last dimension.
    """
    u = mean + log_std.exp() * noise
    if not use_tanh_squash:
        log_normal = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI
        return u.clamp(-1.0, 1.0) * active(residual_dims), log_normal @ active(residual_dims)
    return tanh_residual(u, residual_dims), residual_log_prob(u, noise, log_std, residual_dims)


def tanh_residual(u: Tensor, residual_dims: Tensor) -> Tensor:
    """(2): delta = tanh(u) [..., A], 0 in the dimensions that carry no residual."""
    return torch.tanh(u) * active(residual_dims)


def residual_log_prob(u: Tensor, noise: Tensor, log_std: Tensor, residual_dims: Tensor) -> Tensor:
    """log pi(delta | x) = sum over active dimensions of log N(u) - log(1 - tanh(u)^2), in nats.

    Args:
        u: before the tanh, [..., A].
        noise: (u - mean) / std, [..., A].
        log_std: [B, A].
        residual_dims: [A]; only dimensions above 0 count.
    """
    log_normal = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(u)^2) written so that it stays finite for large |u|
    log_slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return (log_normal - log_slope) @ active(residual_dims)


def active(residual_dims: Tensor) -> Tensor:
    """1.0 in the dimensions that carry a residual, else 0.0, [A]."""
    return residual_dims.sign()


def compose_action(
    base_action: Tensor,
    delta: Tensor,
    residual_scale: Tensor | float,
    residual_dims: Tensor,
    low: Tensor | float = -1.0,
    high: Tensor | float = 1.0,
) -> Tensor:
    """(3), (4), (9), (24): a = clip(a_base + beta * dims * delta, low, high).

    Args:
        base_action: [B, A], in action units.
        delta: [B, A] or [K, B, A], in [-1, 1].
        residual_scale: beta, a scalar.
        residual_dims: [A], in [0, 1].
        low, high: action bounds, scalars or [A].
    """
    action = base_action + (residual_scale * residual_dims) * delta
    return torch.clamp(action, low, high)  # type: ignore[arg-type]


def executed_residual(
    base_action: Tensor,
    action: Tensor,
    residual_scale: Tensor | float,
    residual_dims: Tensor,
) -> Tensor:
    """The delta of (3) that leads from the base action to an action, clipped to [-1, 1], [B, A].

    Args:
        base_action, action: [B, A], in action units.
        residual_scale: beta, a scalar; at 0 every delta is the same, and 0 is returned.
        residual_dims: [A]; a dimension with factor 0 carries no residual.
    """
    unit = residual_scale * residual_dims
    delta = (action - base_action) / torch.where(unit > 0, unit, 1.0)
    return torch.clamp(delta, -1.0, 1.0) * unit.sign()


def action_frame(
    compose_base: bool, low: Tensor | float, high: Tensor | float
) -> tuple[Tensor | float, Tensor | float]:
    """Origin and unit of delta: what is added to the base action, and one unit of delta.

    With a base policy (0, 1): delta counts in action units from the base action. Without one, and
    its base action 0, the middle and half the range: delta in [-1, 1] spans the action space.

    Args:
        low, high: action bounds, scalars or [A], finite without a base policy.
    """
    if compose_base:
        return 0.0, 1.0
    return (low + high) / 2, (high - low) / 2


# --- critic --------------------------------------------------------------------------------------


def td_target(
    reward: Tensor,
    discount: Tensor,
    q_next: Tensor,
    log_prob_next: Tensor,
    alpha: Tensor | float,
    reduction: str = "min",
    backup_entropy: bool = True,
    logits: Tensor | None = None,
) -> Tensor:
    """(10), (11), (12): y = r + discount * max_k [ Q_red(x', a'_k) - alpha * log pi(delta'_k) ].

    Args:
        reward: n-step return of rewards, [B].
        discount: gamma^n * (1 - terminated), [B].
        q_next: target critics at the K candidates, [M, K, B].
        log_prob_next: [K, B].
        alpha: temperature.
        reduction: over the M members, `min`, `mean` or `weighted`.
        backup_entropy: False drops the entropy term.
        logits: [M], of `weighted`.

    Returns:
        y [B].
    """
    value = reduce_ensemble(q_next, reduction, logits)
    if backup_entropy:
        value = value - alpha * log_prob_next
    return reward + discount * value.amax(0)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """(13): sum over the N members of the mean squared error to y; q [N, B], target [B]."""
    return (q - target).square().mean(-1).sum()


def conservative_loss(q_policy: Tensor, q_data: Tensor) -> Tensor:
    """Sum over the N members of the mean of Q(x, a_pi) - Q(x, a_D).

    CQL's regulariser (Kumar et al., 2020, equation 2) with the actor as its mu: what the actor
    would do is worth no more than what was done, unless the targets say so. Where both are the
    same it is 0, and bends nothing.

    Args:
        q_policy: at actions of the actor that is trained, [N, B].
        q_data: at the stored actions, [N, B].
    """
    return (q_policy - q_data).mean(-1).sum()


# --- actor and temperature -----------------------------------------------------------------------


def actor_loss(
    q: Tensor,
    log_prob: Tensor,
    delta: Tensor,
    alpha: Tensor | float,
    reduction: str = "min",
    residual_penalty: float = 0.0,
    logits: Tensor | None = None,
) -> Tensor:
    """(16): mean of alpha * log pi(delta | x) - Q_red(x, a) + residual_penalty * ||delta||^2.

    Args:
        q: critics at the composed action, [N, B].
        log_prob: [B].
        delta: [B, A].
        alpha: temperature, without gradient.
        reduction: over the N members, `min`, `mean` or `weighted`.
        residual_penalty: weight of the squared residual.
        logits: [N], of `weighted`.
    """
    loss = alpha * log_prob - reduce_ensemble(q, reduction, logits)
    if residual_penalty:
        loss = loss + residual_penalty * delta.square().sum(-1)
    return loss.mean()


def imitation_loss(delta: Tensor, executed: Tensor, imitated: Tensor) -> Tensor:
    """Mean over the batch of ||delta - executed||^2 where a row is imitated, else 0.

    Args:
        delta: of the actor, [B, A].
        executed: of the stored action, `executed_residual`, [B, A].
        imitated: [B] bool. `success_imitation`: the row's episode succeeded. So what the base
            policy can do is kept near what it did, and a correction that worked is repeated, while
            nothing holds the actor where it failed. HG-DAgger (Kelly et al., 2019): a person acted.
    """
    return ((delta - executed).square().sum(-1) * imitated).mean()


def within_reach(delta: Tensor, acting: Tensor, reach: float) -> Tensor:
    """The delta nearest to this one that is within `reach` of what acts, a dimension [B, A].

    Beyond it no gradient of Q pulls: nobody has tried what the critics promise there, and all of
    them may share the error.
    """
    return acting + (delta - acting).clamp(-reach, reach)


def proximal_loss(delta: Tensor, acting: Tensor) -> Tensor:
    """Mean over the batch of ||delta - acting||^2: the actor stays near the one that acts.

    Args:
        delta: of the trained actor, [B, A].
        acting: of the one that acts, by the same noise, without gradient, [B, A].
    """
    return (delta - acting).square().sum(-1).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: Tensor | float) -> Tensor:
    """(18), in log alpha: mean of -log_alpha * (log pi(delta | x) + H_tgt); log_prob [B] detached.

    The step that follows keeps log_alpha above its floor (`log_alpha_min`).
    """
    return -log_alpha.squeeze() * (log_prob.detach() + target_entropy).mean()


def entropy_target(
    residual_dims: Tensor,
    target_entropy: float | None = None,
    residual_scale: Tensor | float = 1.0,
    scale_entropy_target: bool = False,
) -> Tensor:
    """H_tgt in nats, a scalar: given, or -0.5 per dimension that carries a residual.

    With `scale_entropy_target` that is the entropy of the scaled residual, as in EXPO, whose log pi
    is that of the scaled edit. Ours is that of delta, and H(beta * dims * delta) = H(delta) +
    sum(log(beta * dims)): delta is asked for H_tgt - sum(log(beta * dims)), beta * dims not below
    1e-3.
    """
    dims = active(residual_dims)
    entropy = -0.5 * dims.sum() if target_entropy is None else dims.new_tensor(target_entropy)
    if not scale_entropy_target:
        return entropy
    scale = (residual_scale * residual_dims).clamp(min=MIN_SCALE_IN_ENTROPY)
    return entropy - dims @ scale.log()
