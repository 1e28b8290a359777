"""Every parameter of the residual SAC learner, one field each, with its meaning under it.

The RLlib config (`ResidualSACConfig`), the command line and the plain-PyTorch update all read
this one dataclass, so a parameter has the same name and default wherever it appears.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pld_ray.algorithm.validation import validate_params


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

    compose_base: bool = True
    """Add the residual to the base action. False learns the whole action, a = clip(beta * dims *
    delta), and shows the base action to no network: RLPD where the base policy has filled the
    offline buffer, plain SAC where it has not."""
    use_tanh_squash: bool = True
    """delta = tanh(u); False clips u to [-1, 1] instead."""

    # --- gripper (seed 003; seed 004, section 5.4) -----------------------------------------------
    gripper: str = "continuous"
    """`continuous`: the gripper is one more dimension of the residual. `discrete`: open, hold or
    close, chosen by a double-DQN critic; hold leaves the base policy's command."""
    gripper_dims: list[int] = field(default_factory=lambda: [6])
    """Action dimension of each discrete gripper, one per arm."""
    grasp_penalty: float = 0.02
    """Taken off the discrete critic's reward for each gripper command that changes, >= 0."""
    gripper_epsilon: float = 0.05
    """Share of steps at which a discrete gripper explores a random choice, in [0, 1]."""

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
    """Environment steps stored online before the first update (formula 5)."""
    warmup_actions: str = "base"
    """Who acts in the warm-up: `base` (formula 5) or `random`, uniform over the action space (SAC
    from scratch)."""
    use_probing: bool = True
    """Start each episode with h ~ Unif{0..probe_steps} base-only steps that are not stored."""
    probe_steps: int = 20
    """H_probe (formula 22), >= 0."""

    # --- Cal-QL initialisation of the critic (formulas 20, 21) -----------------------------------
    calql_steps: int = 0
    """Critic steps on the offline buffer before the online phase; 0 skips it."""
    calql_alpha: float = 1.0
    """alpha_c: weight of the conservative regulariser, >= 0; with `calql_lagrange` its start."""
    calql_lse_beta: float = 1.0
    """Temperature T of the log-sum-exp over sampled actions, > 0."""
    calql_td_xi: float = 0.0
    """Factor on alpha * log_prob in the TD target of these steps; 0 leaves the entropy out."""
    calql_num_actions: int = 10
    """Random, current and next-state actions per observation, each, >= 1."""
    calql_calibrate: bool = True
    """Bound the Q of policy actions from below by mc_return; False is plain CQL."""
    calql_lagrange: bool = False
    """Learn alpha_c so that the regulariser stays near calql_target_gap."""
    calql_target_gap: float = 1.0
    """tau_c: the regulariser that `calql_lagrange` allows."""
    calql_lagrange_lr: float = 3e-4
    """Learning rate of log alpha_c."""

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
    """Learning rate of the actor."""
    critic_lr: float = 5e-4
    """Learning rate of the critics, and of the encoder that they train."""
    temperature_lr: float = 3e-4
    """Learning rate of log alpha."""
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
    """`min`, `mean` or `weighted` (learned softmax weights) over the drawn members in the TD
    target."""
    actor_reduction: str = "mean"
    """`min`, `mean` or `weighted` over all members in the actor loss."""
    otf_candidates: int = 1
    """K of on-the-fly backup: candidates at x', the best is bootstrapped (formulas 8-11)."""
    backup_entropy: bool = False
    """Subtract alpha * log_prob in the TD target (formula 10). Off for sparse reward 1, where the
    bonus otherwise outgrows the reward."""
    critic_observes_base_action: bool = True
    """Give Q the base action beside x: with a chunked base policy it is part of the state."""
    critic_dropout: float = 0.0
    """Probability of dropping a hidden unit of a critic, in [0, 1)."""
    critic_atoms: int = 51
    """Each critic is categorical over that many returns in `value_range`, so that Q lies in it by
    construction; 1 regresses Q instead (formula 13)."""
    value_range: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """Lowest and highest return that the reward allows; Q outside counts as `q_out_of_bound`."""

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
    """Log standard deviation that the actor begins with."""
    log_std_min: float = -5.0
    """Least log standard deviation."""
    log_std_max: float = 2.0
    """Greatest log standard deviation."""
    init_final: float = 0.0
    """The actor's last weights start in Unif[-init_final, init_final]; 0 starts at the base
    policy."""

    # --- networks --------------------------------------------------------------------------------
    hidden_dims: list[int] = field(default_factory=lambda: [256, 256])
    """Widths of the actor's and each critic's hidden layers."""
    critic_layer_norm: bool = True
    """LayerNorm before each critic activation."""
    normalize_observations: bool = True
    """Standardise observations with fixed statistics of the offline and warm-up data."""

    compile_backend: str = "none"
    """torch.compile backend for critics and actor: `none`, `inductor` (with a GPU) or `aot_eager`.
    Compiling takes a minute or more; on a CPU it does not pay."""

    # --- observation encoder (seed 000, section 2; seed 004, sections 2.2, 5.1, 5.2) --------------
    vision_encoder_name: str = "none"
    """What reads camera images: `none`, `cnn`, `resnet10` (SERL's layout), `torchvision:NAME` or
    `timm:NAME`."""
    vision_encoder_weights: str | None = None
    """Local file with its weights; None starts at random, by `vision_encoder_seed`."""
    vision_encoder_seed: int = 0
    """Seed of random encoder weights, apart from the run's so that features can be shared."""
    freeze_vision_encoder: bool = True
    """Frozen: features are computed once per frame and stored. Otherwise it is trained with the
    critic, on randomly shifted images."""
    random_shift_pad: int = 4
    """DrQ: images of a trained encoder are shifted by up to so many pixels; 0 switches it off."""
    image_encoder_hidden_dim: int = 32
    """Channels of `cnn`."""
    image_pooling: str = "spatial_embeddings"
    """`spatial_embeddings` (learned) or `average` over the feature map."""
    spatial_features: int = 8
    """Learned embeddings per channel."""
    latent_dim: int = 256
    """Width of each camera's latent, after Linear + LayerNorm + tanh."""
    state_encoder_hidden_dim: int = 0
    """Width of the state's latent, after Linear + LayerNorm + tanh; 0 passes the vector through."""
    task_embedding: str = "none"
    """`none`, `learned` (one vector per task) or `text` (of a frozen local text model)."""
    task_embedding_dim: int = 32
    """Width of the task's latent."""
    text_encoder_path: str | None = None
    """Folder of a Hugging Face text model, for `task_embedding=text`."""
    shared_encoder: bool = True
    """One encoder for actor and critics, trained by the critics alone; False gives each its own."""

    def validate(self) -> None:
        """Raise ValueError on the first field outside its range."""
        validate_params(self)
