"""Every parameter of the residual SAC learner, each declared once.

The RLlib config (`ResidualSACConfig`), the command line and the plain-PyTorch update all read
this one dataclass, so a parameter has the same name and default wherever it appears.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from pld_ray.config.learner import LearnerParams
from pld_ray.config.residual_sac_checks import validate_params
from pld_ray.config.residual_sac_phases import PhaseParams
from pld_ray.options import option, with_default

BEFORE: dict[str, Any] = {
    "ema_decay": 0.0,
    "success_imitation": 0.0,
    "collection_steps": 0,
    "actor_delay_n_step": 0,
    "actor_lr_warmup_updates": 0,
    "conservative_weight": 0.0,
    "conservative_remainder": 0.0,
}
"""Options that a run or policy stored by an older release may not name, and what held then."""

RETIRED: dict[str, Any] = {"learning_rate_shares": {}, "success_share": 0.0}
"""Options that such a one may name and that are gone, with the value with which they did nothing;
no policy acts by them."""


@dataclass
class ResidualSACParams(LearnerParams, PhaseParams):
    """Parameters of residual SAC (seed 002; PLD paper, Table 5). Defaults suit the embedded task.

    Raises:
        ValueError: by `validate()`, naming the field, its value and the accepted range.
    """

    # --- returns ---------------------------------------------------------------------------------
    n_step: int = option(
        3,
        "Length of the TD return (1 is formula 12): short, so that it is of the policy and not of "
        "the noise that was played with.",
        within="[1, 1000]",
    )
    actor_delay_n_step: int = option(
        16,
        "Length of the TD return while the actor waits, where it does (actor_delay_updates), in "
        "Cal-QL too: long, so that the values are there when it starts. 0 takes `n_step`.",
        within="[0, 1000]",
    )
    gamma: float = with_default(LearnerParams, "gamma", 0.99)

    # --- learning --------------------------------------------------------------------------------
    critic_actor_update_ratio: int = option(
        2, "Critic steps per actor (and temperature) step.", within="[1, 1e6]"
    )
    actor_delay_updates: int = option(
        0,
        "Critic steps before the first actor step, for critics that should see explored actions "
        "first. 0, the default, leaves that to actor_lr_warmup_updates and conservative_weight.",
        within="[0, 1e10]",
    )
    actor_lr_warmup_updates: int = option(
        12_000,
        "Critic steps, from the actor's first, over which its learning rate rises from 0 to "
        "actor_lr: it goes no further than episodes can contradict. 0 is actor_lr from the first.",
        within="[0, 1e10]",
    )
    temperature_lr: float = option(3e-4, "Learning rate of log alpha.", within="(0, 10]")
    ema_decay: float = with_default(LearnerParams, "ema_decay", 0.999)

    # --- critic ----------------------------------------------------------------------------------
    num_critics: int = with_default(LearnerParams, "num_critics", 5)
    otf_candidates: int = option(
        1,
        "K of on-the-fly backup: candidates at x', the best is bootstrapped (formulas 8-11).",
        within="[1, 1024]",
    )
    conservative_weight: float = option(
        0.2,
        "Weight of Q at the actor's action less Q at the stored one in the critic loss (CQL's, "
        "without its log-sum-exp), from the actor's first step on: what the actor would do and "
        "nobody has tried is not believed.",
        within="[0, 1e6]",
    )
    conservative_updates: int = option(
        6_000,
        "Critic steps, from the actor's first, over which conservative_weight falls: it holds a "
        "young actor and slows one that knows its way. 0 keeps it.",
        within="[0, 1e10]",
    )
    conservative_remainder: float = option(
        0.1,
        "Share of conservative_weight that it falls to, and that remains: one that knows its way "
        "still finds promises that nobody has tried. 0 ends it.",
        within="[0, 1]",
    )
    backup_entropy: bool = option(
        False,
        "Subtract alpha * log_prob in the TD target (formula 10). Off for sparse reward 1, "
        "where the bonus otherwise outgrows the reward.",
    )
    critic_observes_base_action: bool = option(
        True, "Give Q the base action beside x: with a chunked base policy it is part of the state."
    )

    # --- actor and temperature -------------------------------------------------------------------
    actor_loss: Literal["sac", "hg_dagger"] = option(
        "sac",
        "`sac`, or `hg_dagger`: the actor imitates what a person did, in interventions and "
        "demonstrations, and learns nothing else (success_imitation=0); no critic and no "
        "temperature is trained, and each update is a step of the actor. Experimental.",
    )
    temperature_init: float = option(0.002, "alpha_0.", within="(0, 1e6]")
    log_alpha_min: float = option(-12.0, "Floor of log alpha.", within="[-100, 100]")
    target_entropy: float | None = option(
        None,
        "H_tgt in nats over the residual dimensions in use; None means -0.5 per such dimension.",
        within="[-1e6, 1e6]",
        unit="nats",
    )
    scale_entropy_target: bool = option(
        False,
        "The target entropy is that of the scaled residual beta * dims * delta, as EXPO's: delta "
        "is asked for target_entropy - sum(log(beta * dims)), more as beta shrinks.",
    )
    residual_penalty: float = option(
        0.0, "Weight of ||delta||^2 in the actor loss.", within="[0, 1e6]"
    )
    success_imitation: float = option(
        0.05,
        "Weight of ||delta - executed delta||^2 in the actor loss, on rows of successful episodes "
        "alone: what works stays as it was.",
        within="[0, 1e6]",
    )
    proximal_penalty: float = option(
        0.0,
        "Weight of ||delta - delta of the average that acts||^2 in the actor loss, by the same "
        "noise; above 0 the critics are asked within proximal_range of what acts alone, so that a "
        "false promise beyond what was tried pulls nobody there. Experimental.",
        within="[0, 1e6]",
    )
    proximal_range: float = option(
        0.25,
        "With proximal_penalty: how far from the delta that acts Q is asked, a dimension of delta.",
        within="(0, 2]",
    )
    log_std_init: float = option(
        -2.0, "Log standard deviation that the actor begins with.", within="[-100, 20]"
    )
    log_std_min: float = option(-5.0, "Least log standard deviation.", within="[-100, 20]")
    log_std_max: float = option(2.0, "Greatest log standard deviation.", within="[-100, 20]")
    init_final: float = option(
        0.0,
        "The actor's last weights start in Unif[-init_final, init_final]; 0 starts at the base "
        "policy.",
        within="[0, 10]",
    )

    # --- observation encoder (seed 004, section 5.1) ----------------------------------------------
    shared_encoder: bool = option(
        True,
        "One encoder for actor and critics, trained by the critics alone; False gives each its "
        "own.",
    )

    @property
    def return_steps(self) -> int:
        """Steps of the longest window that an update may ask for."""
        return max(self.n_step, self.actor_delay_n_step if self.actor_delay_updates else 1)

    @classmethod
    def of_stored(cls, params: Mapping[str, Any]) -> Self:
        """Those of a policy that this or an older release stored: it acts as it did.

        Raises:
            ValueError: naming a parameter that neither has.
        """
        known = {**BEFORE, **{name: params[name] for name in params if name not in RETIRED}}
        for name in known.keys() - {field.name for field in fields(cls)}:
            raise ValueError(f"{name} is none of the parameters that this pld-ray has")
        return cls(**known)

    def validate(self) -> None:
        """Raise ValueError on the first field outside its range."""
        validate_params(self)
