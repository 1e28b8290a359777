"""Every parameter of the residual SAC learner, one field each, with its meaning under it.

The RLlib config (`ResidualSACConfig`), the command line and the plain-PyTorch update all read
this one dataclass, so a parameter has the same name and default wherever it appears.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ResidualSACParams:
    """Parameters of residual SAC (seed 002; PLD paper, Table 5). Defaults suit the embedded task.

    Raises:
        ValueError: by `validate()`, naming the field, its value and the accepted range.
    """

    # --- action composition: a = clip(a_base + beta_t * residual_dims * delta) -------------------
    residual_scale: float = 1.0
    """beta: scale of the residual at the end of its schedule, in action units, >= 0."""
    residual_dims: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    """Per-dimension factor on beta, in [0, 1]; 0 leaves a dimension to the base policy.
    Empty means 1 for every dimension."""
    residual_scale_schedule: str = "constant"
    """`constant`, `linear` (init -> residual_scale over schedule_steps) or `success` (grows by
    residual_scale_increment per window whose success rate exceeds residual_scale_success)."""
    residual_scale_init: float = 0.0
    """beta at the start of a `linear` or `success` schedule."""
    residual_scale_steps: int = 10_000
    """Environment steps after warm-up over which a `linear` schedule runs."""
    residual_scale_success: float = 0.5
    """`success` schedule: running success rate above which beta grows, in [0, 1]."""
    residual_scale_increment: float = 0.1
    """`success` schedule: growth of beta at each finished window of 20 episodes."""

    # --- exploration -----------------------------------------------------------------------------
    exploration_noise: str = "ar1"
    """Noise behind the residual's Gaussian while training: `white` (independent per step), `ar1`
    (unit-variance AR(1)) or `held` (one draw held for exploration_hold steps)."""
    exploration_rho: float = 0.9
    """AR(1) coefficient, in [0, 1)."""
    exploration_hold: int = 8
    """Steps for which one draw of `held` noise is kept, >= 1."""

    # --- phases ----------------------------------------------------------------------------------
    offline_episodes: int = 20
    """Successful base-policy episodes for the offline buffer; 0 trains on online data only."""
    warmup_steps: int = 2_000
    """Base-only environment steps stored online before the first update (formula 5)."""
    use_probing: bool = True
    """Start each episode with h ~ Unif{0..probe_steps} base-only steps that are not stored."""
    probe_steps: int = 20
    """H_probe (formula 22), >= 0."""

    # --- replay ----------------------------------------------------------------------------------
    online_capacity: int = 250_000
    """Rows of the online ring."""
    offline_capacity: int = 100_000
    """Rows of the offline ring."""
    batch_size: int = 256
    """Transitions per gradient step, half of them offline while the offline buffer is not empty."""
    n_step: int = 3
    """Length of the TD return, >= 1 (1 is formula 12)."""

    # --- learning --------------------------------------------------------------------------------
    gamma: float = 0.98
    """Discount per environment step, in (0, 1]."""
    tau: float = 0.005
    """Soft target update (formula 15), in (0, 1]."""
    utd: float = 1.0
    """Gradient steps (critic updates) per stored environment step."""
    critic_actor_update_ratio: int = 2
    """Critic steps per actor (and temperature) step, >= 1."""
    actor_delay_updates: int = 1_500
    """Critic steps before the first actor step: the critic first sees explored actions, where its
    gradient in the action means something."""
    actor_lr: float = 5e-4
    critic_lr: float = 5e-4
    temperature_lr: float = 3e-4
    weight_decay: float = 0.0
    """AdamW decay on actor and critic; 0 is plain Adam."""
    grad_clip_norm: float = 0.0
    """Global norm to which the gradient of each optimiser is clipped; 0 switches it off."""

    # --- critic ----------------------------------------------------------------------------------
    num_critics: int = 2
    """Members N of the critic ensemble."""
    num_subsample_critics: int = 2
    """Members M drawn at random for each target; M = N = 2 is clipped double Q."""
    target_reduction: str = "min"
    """`min` or `mean` over the drawn members in the TD target."""
    actor_reduction: str = "mean"
    """`min` or `mean` over all members in the actor loss."""
    otf_candidates: int = 1
    """K of on-the-fly backup: candidates at x', the best is bootstrapped (formulas 8-11)."""
    backup_entropy: bool = False
    """Subtract alpha * log_prob in the TD target (formula 10). Off for sparse reward 1, where the
    bonus otherwise outgrows the reward."""
    critic_observes_base_action: bool = True
    """Give Q the base action beside x: with a chunked base policy it is part of the state."""

    # --- actor and temperature -------------------------------------------------------------------
    temperature_init: float = 0.002
    """alpha_0, > 0."""
    log_alpha_min: float = -12.0
    """Floor of log alpha."""
    target_entropy: float | None = None
    """H_tgt in nats over the residual dimensions in use; None means -0.5 per such dimension."""
    scale_entropy_target: bool = False
    """Add sum(log(beta * residual_dims)) to the target entropy, which falls as beta shrinks."""
    residual_penalty: float = 0.0
    """Weight of ||delta||^2 in the actor loss."""
    log_std_init: float = -1.0
    log_std_min: float = -5.0
    log_std_max: float = 2.0

    # --- networks --------------------------------------------------------------------------------
    hidden_dims: list[int] = field(default_factory=lambda: [256, 256])
    """Widths of the actor's and each critic's hidden layers."""
    critic_layer_norm: bool = True
    """LayerNorm before each critic activation."""
    normalize_observations: bool = True
    """Standardise observations with fixed statistics of the offline and warm-up data."""

    def validate(self) -> None:
        """Raise ValueError on the first field outside its range."""

        def need(ok: bool, name: str, accepted: str) -> None:
            if not ok:
                raise ValueError(f"algorithm.{name}={getattr(self, name)!r}: must be {accepted}")

        need(self.residual_scale >= 0, "residual_scale", ">= 0")
        need(all(0 <= d <= 1 for d in self.residual_dims), "residual_dims", "factors in [0, 1]")
        need(
            not self.residual_dims or any(d > 0 for d in self.residual_dims),
            "residual_dims",
            "empty, or above 0 in at least one dimension",
        )
        need(
            self.residual_scale_schedule in ("constant", "linear", "success"),
            "residual_scale_schedule",
            "constant, linear or success",
        )
        need(self.residual_scale_init >= 0, "residual_scale_init", ">= 0")
        need(self.residual_scale_steps >= 1, "residual_scale_steps", ">= 1")
        need(0 <= self.residual_scale_success <= 1, "residual_scale_success", "in [0, 1]")
        need(self.residual_scale_increment > 0, "residual_scale_increment", "> 0")
        need(
            self.exploration_noise in ("white", "ar1", "held"),
            "exploration_noise",
            "white, ar1 or held",
        )
        need(0 <= self.exploration_rho < 1, "exploration_rho", "in [0, 1)")
        need(self.exploration_hold >= 1, "exploration_hold", ">= 1")
        need(self.offline_episodes >= 0, "offline_episodes", ">= 0")
        need(self.warmup_steps >= 0, "warmup_steps", ">= 0")
        need(
            self.warmup_steps >= 2 or self.offline_episodes > 0 or not self.normalize_observations,
            "warmup_steps",
            ">= 2 with offline_episodes=0, or normalize_observations has no data to learn from",
        )
        need(self.probe_steps >= 0, "probe_steps", ">= 0")
        need(self.online_capacity >= 2, "online_capacity", ">= 2")
        need(self.offline_capacity >= 2, "offline_capacity", ">= 2")
        need(self.batch_size >= 2, "batch_size", ">= 2")
        need(self.n_step >= 1, "n_step", ">= 1")
        need(0 < self.gamma <= 1, "gamma", "in (0, 1]")
        need(0 < self.tau <= 1, "tau", "in (0, 1]")
        need(self.utd >= 0, "utd", ">= 0")
        need(self.critic_actor_update_ratio >= 1, "critic_actor_update_ratio", ">= 1")
        need(self.actor_delay_updates >= 0, "actor_delay_updates", ">= 0")
        for name in ("actor_lr", "critic_lr", "temperature_lr", "temperature_init"):
            need(getattr(self, name) > 0, name, "> 0")
        need(self.weight_decay >= 0, "weight_decay", ">= 0")
        need(self.grad_clip_norm >= 0, "grad_clip_norm", ">= 0")
        need(self.num_critics >= 1, "num_critics", ">= 1")
        need(
            1 <= self.num_subsample_critics <= self.num_critics,
            "num_subsample_critics",
            f"between 1 and num_critics={self.num_critics}",
        )
        need(self.target_reduction in ("min", "mean"), "target_reduction", "min or mean")
        need(self.actor_reduction in ("min", "mean"), "actor_reduction", "min or mean")
        need(self.otf_candidates >= 1, "otf_candidates", ">= 1")
        need(self.residual_penalty >= 0, "residual_penalty", ">= 0")
        need(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max")
        need(
            bool(self.hidden_dims) and all(h >= 1 for h in self.hidden_dims),
            "hidden_dims",
            "one or more widths >= 1",
        )
