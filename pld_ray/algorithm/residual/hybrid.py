"""Losses of discrete grippers beside the continuous residual (HIL-SERL; seed 004, section 5.4).

What the choices mean is in `networks/grippers.py`. B batch, G grippers.
"""

from __future__ import annotations

from torch import Tensor


def discrete_td_target(
    reward: Tensor,
    penalty: Tensor,
    discount: Tensor,
    q_next_online: Tensor,
    q_next_target: Tensor,
) -> Tensor:
    """Double DQN: y = r + penalty + discount * Q_target(x', argmax_c Q_online(x', c)).

    Args:
        reward, penalty: n-step sums, [B]; the penalty is -grasp_penalty per gripper command that
            changed, so <= 0.
        discount: gamma^n * (1 - terminated), [B].
        q_next_online, q_next_target: [B, 3^G].

    Returns:
        y [B].
    """
    best = q_next_online.argmax(-1, keepdim=True)
    return reward + penalty + discount * q_next_target.gather(-1, best).squeeze(-1)


def discrete_critic_loss(q: Tensor, joint: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of Q(x, c) at the choices made; q [B, 3^G], joint, target [B]."""
    chosen = q.gather(-1, joint.unsqueeze(-1)).squeeze(-1)
    return (chosen - target).square().mean()
