"""The range of every learner parameter, checked before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pld_ray.algorithm.params import ResidualSACParams

REDUCTIONS = ("min", "mean", "weighted")
VISION_ENCODERS = ("none", "cnn", "resnet10")


def validate_params(params: ResidualSACParams) -> None:
    """Raise ValueError on the first field outside its range."""

    need = partial(need_field, params)
    need(params.residual_scale >= 0, "residual_scale", ">= 0")
    need(all(0 <= d <= 1 for d in params.residual_dims), "residual_dims", "factors in [0, 1]")
    need(
        not params.residual_dims or any(d > 0 for d in params.residual_dims),
        "residual_dims",
        "empty, or above 0 in at least one dimension",
    )
    need(
        params.residual_scale_schedule in ("constant", "linear", "success"),
        "residual_scale_schedule",
        "constant, linear or success",
    )
    need(params.residual_scale_init >= 0, "residual_scale_init", ">= 0")
    need(params.residual_scale_steps >= 1, "residual_scale_steps", ">= 1")
    need(0 <= params.residual_scale_success <= 1, "residual_scale_success", "in [0, 1]")
    need(params.residual_scale_increment > 0, "residual_scale_increment", "> 0")
    need(
        params.exploration_noise in ("white", "ar1", "held"),
        "exploration_noise",
        "white, ar1 or held",
    )
    need(0 <= params.exploration_rho < 1, "exploration_rho", "in [0, 1)")
    need(params.exploration_hold >= 1, "exploration_hold", ">= 1")
    need(params.offline_episodes >= 0, "offline_episodes", ">= 0")
    need(params.warmup_steps >= 0, "warmup_steps", ">= 0")
    need(
        params.warmup_steps >= 2
        or params.offline_episodes > 0
        or not params.normalize_observations,
        "warmup_steps",
        ">= 2 with offline_episodes=0, or normalize_observations has no data to learn from",
    )
    need(params.probe_steps >= 0, "probe_steps", ">= 0")
    need(params.online_capacity >= 2, "online_capacity", ">= 2")
    need(params.offline_capacity >= 2, "offline_capacity", ">= 2")
    need(params.batch_size >= 2, "batch_size", ">= 2")
    need(params.n_step >= 1, "n_step", ">= 1")
    need(0 < params.gamma <= 1, "gamma", "in (0, 1]")
    need(0 < params.tau <= 1, "tau", "in (0, 1]")
    need(params.utd >= 0, "utd", ">= 0")
    need(params.critic_actor_update_ratio >= 1, "critic_actor_update_ratio", ">= 1")
    need(params.actor_delay_updates >= 0, "actor_delay_updates", ">= 0")
    for name in ("actor_lr", "critic_lr", "temperature_lr", "temperature_init"):
        need(getattr(params, name) > 0, name, "> 0")
    need(params.weight_decay >= 0, "weight_decay", ">= 0")
    need(params.grad_clip_norm >= 0, "grad_clip_norm", ">= 0")
    need(params.num_critics >= 1, "num_critics", ">= 1")
    need(
        1 <= params.num_subsample_critics <= params.num_critics,
        "num_subsample_critics",
        f"between 1 and num_critics={params.num_critics}",
    )
    need(params.target_reduction in REDUCTIONS, "target_reduction", " or ".join(REDUCTIONS))
    need(params.actor_reduction in REDUCTIONS, "actor_reduction", " or ".join(REDUCTIONS))
    need(params.otf_candidates >= 1, "otf_candidates", ">= 1")
    need(params.residual_penalty >= 0, "residual_penalty", ">= 0")
    need(params.log_std_min < params.log_std_max, "log_std_min", "below log_std_max")
    need(
        bool(params.hidden_dims) and all(h >= 1 for h in params.hidden_dims),
        "hidden_dims",
        "one or more widths >= 1",
    )
    check_calql(params)
    check_gripper(params)
    check_critic_options(params)
    check_encoder(params)


def need_field(params: ResidualSACParams, ok: bool, name: str, accepted: str) -> None:
    """Raise ValueError naming the field, its value and what is accepted."""
    if not ok:
        raise ValueError(f"algorithm.{name}={getattr(params, name)!r}: must be {accepted}")


def check_calql(params: ResidualSACParams) -> None:
    """Cal-QL's own ranges, and that it has data."""

    need = partial(need_field, params)
    need(params.calql_steps >= 0, "calql_steps", ">= 0")
    need(params.calql_alpha >= 0, "calql_alpha", ">= 0")
    need(params.calql_lse_beta > 0, "calql_lse_beta", "> 0")
    need(params.calql_td_xi >= 0, "calql_td_xi", ">= 0")
    need(params.calql_num_actions >= 1, "calql_num_actions", ">= 1")
    need(params.calql_lagrange_lr > 0, "calql_lagrange_lr", "> 0")
    need(
        not params.calql_lagrange or params.calql_alpha > 0,
        "calql_alpha",
        "> 0 with calql_lagrange, which starts from it",
    )
    need(
        params.calql_steps == 0 or params.offline_episodes > 0,
        "calql_steps",
        "0 with offline_episodes=0: Cal-QL learns from the offline buffer, which would be empty",
    )


def check_gripper(params: ResidualSACParams) -> None:
    """The discrete gripper's ranges."""

    need = partial(need_field, params)
    need(params.gripper in ("continuous", "discrete"), "gripper", "continuous or discrete")
    dims = params.gripper_dims
    need(
        0 < len(dims) <= 2 and len(set(dims)) == len(dims) and min(dims) >= 0,
        "gripper_dims",
        "one action dimension per gripper, one or two",
    )
    if params.gripper == "discrete" and params.residual_dims:
        need(
            all(params.residual_dims[d] == 0 for d in dims if d < len(params.residual_dims)),
            "residual_dims",
            f"0 in the discrete gripper's dimensions {dims}",
        )
    need(params.grasp_penalty >= 0, "grasp_penalty", ">= 0")
    need(0 <= params.gripper_epsilon <= 1, "gripper_epsilon", "in [0, 1]")


def check_grippers(params: ResidualSACParams, gripper_dims: Sequence[int]) -> None:
    """Raise ValueError if a discrete gripper is asked for where the environment has none.

    Args:
        gripper_dims: action dimensions that the environment declares as grippers.
    """
    if params.gripper != "discrete" or set(params.gripper_dims) <= set(gripper_dims):
        return
    has = f"has grippers in dimensions {list(gripper_dims)}" if gripper_dims else "has no gripper"
    raise ValueError(
        f"algorithm.gripper=discrete with gripper_dims={params.gripper_dims}: the environment "
        f"{has}; correct gripper_dims, or set gripper=continuous"
    )


def check_critic_options(params: ResidualSACParams) -> None:
    """Dropout, the categorical critic, and what a baseline excludes."""

    need = partial(need_field, params)
    need(0 <= params.critic_dropout < 1, "critic_dropout", "in [0, 1)")
    need(params.critic_atoms >= 1, "critic_atoms", ">= 1 (1 is a scalar critic)")
    need(
        len(params.value_range) == 2 and params.value_range[0] < params.value_range[1],
        "value_range",
        "[lowest return, highest return]",
    )
    need(
        params.compile_backend in ("none", "inductor", "aot_eager"),
        "compile_backend",
        "none, inductor or aot_eager",
    )
    need(params.init_final >= 0, "init_final", ">= 0")
    need(params.warmup_actions in ("base", "random"), "warmup_actions", "base or random")
    need(
        params.warmup_actions == "base" or params.offline_episodes == 0,
        "warmup_actions",
        "base with offline_episodes > 0: the offline buffer holds the base policy's successes",
    )


def check_encoder(params: ResidualSACParams) -> None:
    """The observation encoder's ranges."""

    need = partial(need_field, params)
    name = params.vision_encoder_name
    need(
        name in VISION_ENCODERS or name.startswith(("torchvision:", "timm:")),
        "vision_encoder_name",
        "none, cnn, resnet10, torchvision:NAME or timm:NAME",
    )
    need(params.random_shift_pad >= 0, "random_shift_pad", ">= 0")
    for field in ("image_encoder_hidden_dim", "spatial_features", "latent_dim"):
        need(getattr(params, field) >= 1, field, ">= 1")
    need(params.task_embedding_dim >= 1, "task_embedding_dim", ">= 1")
    need(params.state_encoder_hidden_dim >= 0, "state_encoder_hidden_dim", ">= 0")
    need(
        params.image_pooling in ("spatial_embeddings", "average"),
        "image_pooling",
        "spatial_embeddings or average",
    )
    need(
        params.task_embedding in ("none", "learned", "text"),
        "task_embedding",
        "none, learned or text",
    )
    need(
        params.task_embedding != "text" or bool(params.text_encoder_path),
        "text_encoder_path",
        "the folder of a text model, with task_embedding=text",
    )
