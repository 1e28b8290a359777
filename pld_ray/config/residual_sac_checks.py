"""What must hold between learner parameters; types and ranges are declared with each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pld_ray.options import check_options

if TYPE_CHECKING:
    from pld_ray.config.learner import LearnerParams
    from pld_ray.config.residual_sac import ResidualSACParams


def validate_params(params: ResidualSACParams) -> None:
    """Raise ValueError on the first field outside its range, or that another one excludes."""
    check_options(params, "algorithm.")
    check_phases(params)
    check_critic(params)
    check_actor(params)
    check_imitation(params)
    check_entropy_target(params)
    check_gripper(params)
    check_encoder(params)


def need_field(params: LearnerParams, ok: bool, name: str, accepted: str) -> None:
    """Raise ValueError naming the field, its value and what is accepted."""
    if not ok:
        raise ValueError(f"algorithm.{name}={getattr(params, name)!r}: must be {accepted}")


def check_phases(params: ResidualSACParams) -> None:
    """Each phase has the data that it learns from."""
    need = partial(need_field, params)
    need(
        not params.residual_dims or any(d > 0 for d in params.residual_dims),
        "residual_dims",
        "empty, or above 0 in at least one dimension",
    )
    need(
        params.warmup_steps >= 2
        or params.offline_episodes > 0
        or not params.normalize_observations,
        "warmup_steps",
        ">= 2 with offline_episodes=0, or normalize_observations has no data to learn from",
    )
    need(
        params.calql_steps == 0 or params.offline_episodes > 0,
        "calql_steps",
        "0 with offline_episodes=0: Cal-QL learns from the offline buffer, which would be empty",
    )
    need(
        not params.calql_lagrange or params.calql_alpha > 0,
        "calql_alpha",
        "> 0 with calql_lagrange, which starts from it",
    )


def check_critic(params: LearnerParams) -> None:
    """Bounds that bound each other."""
    need = partial(need_field, params)
    need(
        params.num_subsample_critics <= params.num_critics,
        "num_subsample_critics",
        f"between 1 and num_critics={params.num_critics}",
    )
    need(
        params.critic_smoothing == 0 or params.critic_smoothing >= 0.5,
        "critic_smoothing",
        "0, or at least 0.5: of a narrower one the nearest atom has all, and no value falls by "
        "its discount",
    )
    low, high = params.value_range
    need(low < high, "value_range", "[lowest return, highest return]")


def check_actor(params: ResidualSACParams) -> None:
    """Bounds of the Gaussian."""
    need = partial(need_field, params)
    low, high = params.log_std_min, params.log_std_max
    need(low < high, "log_std_min", "below log_std_max")
    need(
        low <= params.log_std_init <= high,  # outside the clamp has no gradient: it never moves
        "log_std_init",
        f"between log_std_min={low} and log_std_max={high}",
    )
    need(
        params.proximal_penalty == 0 or params.ema_decay > 0,
        "proximal_penalty",
        "0 with ema_decay=0: the actor that is trained acts, and is nowhere else",
    )


def check_imitation(params: ResidualSACParams) -> None:
    """HG-DAgger trains the actor alone: nothing may need a critic, or another term of its loss."""
    if params.actor_loss != "hg_dagger":
        return
    need = partial(need_field, params)
    alone = "with actor_loss=hg_dagger, which"
    need(params.calql_steps == 0, "calql_steps", f"0 {alone} has no critic to initialise")
    need(
        params.gripper == "continuous",
        "gripper",
        f"continuous {alone} has no critic to choose a discrete gripper's command",
    )
    for name in ("success_imitation", "residual_penalty", "proximal_penalty"):
        need(getattr(params, name) == 0, name, f"0 {alone} imitates a person and nothing else")
    learns = (
        params.vision_encoder_name != "none"
        or params.state_encoder_hidden_dim > 0
        or params.task_embedding != "none"
    )
    need(
        not (learns and params.shared_encoder),
        "shared_encoder",
        f"false {alone} trains no critic: the actor trains an encoder of its own",
    )


def check_entropy_target(params: ResidualSACParams) -> None:
    """A residual has at most log 2 nats a dimension: a target above that raises alpha for ever."""
    scales = [d for d in params.residual_dims or [1.0] if d > 0]
    unknown = params.target_entropy is not None and not params.residual_dims  # A is not known here
    if not params.scale_entropy_target or unknown:
        return
    beta = params.residual_scale
    if params.residual_scale_schedule != "constant":
        beta = min(beta, params.residual_scale_init)
    entropy = -0.5 * len(scales) if params.target_entropy is None else params.target_entropy
    asked = entropy - sum(math.log(beta * d) for d in scales) if beta else math.inf
    most = len(scales) * math.log(2)
    need_field(
        params,
        asked < most,
        "scale_entropy_target",
        f"false, or beta larger or target_entropy lower: with beta={beta:g} delta is asked for "
        f"{asked:.3g} nats, of which it has {most:.3g} at most",
    )


def check_gripper(params: ResidualSACParams) -> None:
    """The residual leaves a discrete gripper's dimensions alone."""
    dims = params.gripper_dims
    if params.gripper == "discrete" and params.residual_dims:
        need_field(
            params,
            all(params.residual_dims[d] == 0 for d in dims if d < len(params.residual_dims)),
            "residual_dims",
            f"0 in the discrete gripper's dimensions {dims}",
        )


def check_encoder(params: LearnerParams) -> None:
    """A text embedding has its model, and a policy's pooling that policy's encoder."""
    need_field(
        params,
        params.image_pooling != "policy" or params.vision_encoder_name == "policy",
        "image_pooling",
        "spatial_embeddings or average unless vision_encoder_name=policy",
    )
    need_field(
        params,
        params.task_embedding != "text" or bool(params.text_encoder_path),
        "text_encoder_path",
        "the folder of a text model, with task_embedding=text",
    )


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


def check_action_bounds(
    params: ResidualSACParams, low: Sequence[float], high: Sequence[float]
) -> None:
    """Raise ValueError if a setting spans a dimension of the action space that has no bounds.

    Args:
        low, high: bounds of the action space, [A].
    """
    endless = {
        dim
        for dim, bounds in enumerate(zip(low, high, strict=True))
        if not all(map(math.isfinite, bounds))
    }
    spanning = {
        "compose_base=false": set() if params.compose_base else endless,
        "warmup_actions=random": endless if params.warmup_actions == "random" else set(),
        "gripper=discrete": endless & set(params.gripper_dims)
        if params.gripper == "discrete"
        else set(),
    }
    for setting, dims in spanning.items():
        if dims:
            raise ValueError(
                f"algorithm.{setting} spans the environment's action space, which has no bounds in "
                f"dimensions {sorted(dims)}: give it finite ones, or change the setting"
            )
