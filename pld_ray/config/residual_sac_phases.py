"""The first half of the learner's parameters: what the residual does to an action, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pld_ray.options import option


@dataclass
class PhaseParams:
    """Composition, gripper, exploration, phases, and Cal-QL's initialisation of the critic."""

    # --- action composition: a = clip(a_base + beta_t * residual_dims * delta) -------------------
    residual_scale: float = option(
        1.0,
        "beta: scale of the residual at the end of its schedule, in action units.",
        within="[0, 100]",
    )
    residual_dims: list[float] = option(
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        "Per-dimension factor on beta; 0 leaves a dimension to the base policy. "
        "Empty means 1 for every dimension.",
        within="[0, 1]",
        items=(0, 64),
    )
    residual_scale_schedule: Literal["constant", "linear", "success"] = option(
        "constant",
        "`constant`, `linear` (residual_scale_init -> residual_scale over residual_scale_steps) or "
        "`success` (grows by residual_scale_increment per window whose success rate exceeds "
        "residual_scale_success; experimental: no run to the end with it).",
    )
    residual_scale_init: float = option(
        0.0, "beta at the start of a `linear` or `success` schedule.", within="[0, 100]"
    )
    residual_scale_steps: int = option(
        10_000,
        "Environment steps after warm-up over which a `linear` schedule runs.",
        within="[1, 1e10]",
    )
    residual_scale_success: float = option(
        0.5,
        "`success` schedule: running success rate above which beta grows.",
        within="[0, 1]",
    )
    residual_scale_increment: float = option(
        0.1,
        "`success` schedule: growth of beta at each finished window of 20 episodes.",
        within="(0, 100]",
    )

    compose_base: bool = option(
        True,
        "Add the residual to the base action. False learns the whole action, of which delta spans "
        "the bounds, and shows the base action to no network: RLPD where the base policy has "
        "filled the offline buffer, plain SAC where it has not.",
    )
    use_tanh_squash: bool = option(True, "delta = tanh(u); False clips u to [-1, 1] instead.")

    # --- gripper (seed 003; seed 004, section 5.4) -----------------------------------------------
    gripper: Literal["continuous", "discrete"] = option(
        "continuous",
        "`continuous`: the gripper is one more dimension of the residual. `discrete`: open, "
        "hold or close, chosen by a double-DQN critic; hold leaves the base policy's command, "
        "without a base policy the gripper as it is.",
    )
    gripper_dims: list[int] = option(
        [6],
        "Action dimension of each discrete gripper, one per arm.",
        within="[0, 63]",
        items=(1, 2),
        distinct=True,
    )
    grasp_penalty: float = option(
        0.02,
        "Taken off the discrete critic's reward for a command that closes an open gripper or opens "
        "a closed one.",
        within="[0, 1000]",
    )
    gripper_epsilon: float = option(
        0.05,
        "Share of steps at which a discrete gripper explores a random choice.",
        within="[0, 1]",
    )

    # --- exploration -----------------------------------------------------------------------------
    exploration_noise: Literal["white", "ar1", "held"] = option(
        "ar1",
        "Noise behind the residual's Gaussian while training: `white` (independent per step), "
        "`ar1` (unit-variance AR(1)) or `held` (one draw held for exploration_hold steps).",
    )
    exploration_rho: float = option(
        0.97, "AR(1) coefficient: noise lasts for some 1 / (1 - rho) steps.", within="[0, 1)"
    )
    exploration_hold: int = option(
        8, "Steps for which one draw of `held` noise is kept.", within="[1, 1e6]"
    )

    # --- phases ----------------------------------------------------------------------------------
    offline_episodes: int = option(
        10,
        "Successful base-policy episodes for the offline buffer; 0 trains on online data only.",
        within="[0, 1e6]",
    )
    collection_steps: int = option(
        8_000,
        "Environment steps after which the base policy's collection ends with fewer successes, but "
        "one at least; 0 waits for all of them.",
        within="[0, 1e10]",
    )
    warmup_steps: int = option(
        2_000,
        "Environment steps stored online before the first update (formula 5).",
        within="[0, 1e10]",
    )
    warmup_actions: Literal["base", "random"] = option(
        "base",
        "Who acts in the warm-up: `base` (formula 5) or `random`, uniform over the action space; "
        "the offline buffer's successes are the base policy's in both cases.",
    )
    use_probing: bool = option(
        True,
        "Start each episode with h ~ Unif{0..probe_steps} base-only steps that are not stored.",
    )
    probe_steps: int = option(20, "H_probe (formula 22).", within="[0, 1e6]")

    # --- Cal-QL initialisation of the critic (formulas 20, 21) -----------------------------------
    calql_steps: int = option(
        0,
        "Critic steps on the offline buffer before the online phase; 0 skips it.",
        within="[0, 1e10]",
    )
    calql_alpha: float = option(
        1.0,
        "alpha_c: weight of the conservative regulariser; with `calql_lagrange` its start.",
        within="[0, 1e6]",
    )
    calql_lse_beta: float = option(
        1.0, "Temperature T of the log-sum-exp over sampled actions.", within="(0, 1e6]"
    )
    calql_td_xi: float = option(
        0.0,
        "Factor on alpha * log_prob in the TD target of these steps; 0 leaves the entropy out.",
        within="[0, 1e6]",
    )
    calql_num_actions: int = option(
        10,
        "Random, current and next-state actions per observation, each.",
        within="[1, 1024]",
    )
    calql_calibrate: bool = option(
        True, "Bound the Q of policy actions from below by mc_return; False is plain CQL."
    )
    calql_lagrange: bool = option(
        False, "Learn alpha_c so that the regulariser stays near calql_target_gap."
    )
    calql_target_gap: float = option(
        1.0, "tau_c: the regulariser that `calql_lagrange` allows.", within="[-1e6, 1e6]"
    )
    calql_lagrange_lr: float = option(3e-4, "Learning rate of log alpha_c.", within="(0, 10]")
