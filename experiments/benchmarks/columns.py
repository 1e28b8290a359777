"""The columns of one transition, as the benchmarks store it."""

from __future__ import annotations

from pld_ray.replay import ColumnSpec


def transition_columns(observation_dim: int, action_dim: int) -> dict[str, ColumnSpec]:
    """State rows: an observation vector, base action, action and the scalars."""
    scalar, flag, action = ColumnSpec(()), ColumnSpec((), "bool"), ColumnSpec((action_dim,))
    return {
        "observation.state": ColumnSpec((observation_dim,)),
        "base_action": action,
        "action": action,
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
    }
