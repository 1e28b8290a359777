"""The learner that the recorded figures are of: two critics, one update per step, no average."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, Any] = {
    "n_step": 3,
    "actor_delay_n_step": 0,
    "actor_lr_warmup_updates": 0,
    "gamma": 0.98,
    "utd": 1.0,
    "critic_actor_update_ratio": 2,
    "num_critics": 2,
    "ema_decay": 0.0,
    "success_imitation": 0.0,
    "conservative_weight": 0.0,
    "log_std_init": -1.0,
    "exploration_rho": 0.9,
}
