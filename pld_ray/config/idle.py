"""Options that change nothing as the others are set: told when a run starts. They are not refused,
so that a flag may switch off what a file sets up."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from pld_ray.config.file import decode, read_mapping
from pld_ray.config.intervention import ATTENDED
from pld_ray.config.presets import PRESETS
from pld_ray.options import shown, values_of
from pld_ray.options.describe import listed

ON, OFF = True, False
"""That an option has a value, is above 0 or true; that it is not."""
Wanted = bool | int | tuple[str, ...]
Needs = Mapping[str, Wanted]
"""Option -> what it must be: a number at least that, a tuple one of several values."""

VISION = {"algorithm.vision_encoder_name": ON}
SCRIPTED = {"intervention.device": ("scripted",)}
IN_HAND = {"intervention.device": ATTENDED}
POOL = {"policy.placement": ("pool",)}
NEEDS: tuple[tuple[str, str, Needs], ...] = (
    (
        "algorithm.",
        "calql_alpha calql_lse_beta calql_td_xi calql_num_actions calql_calibrate calql_lagrange",
        {"algorithm.calql_steps": ON},
    ),
    (
        "algorithm.",
        "calql_target_gap calql_lagrange_lr",
        {"algorithm.calql_steps": ON, "algorithm.calql_lagrange": ON},
    ),
    (
        "algorithm.",
        "residual_scale_init",
        {"algorithm.residual_scale_schedule": ("linear", "success")},
    ),
    ("algorithm.", "residual_scale_steps", {"algorithm.residual_scale_schedule": ("linear",)}),
    (
        "algorithm.",
        "residual_scale_success residual_scale_increment",
        {"algorithm.residual_scale_schedule": ("success",)},
    ),
    (
        "algorithm.",
        "gripper_dims grasp_penalty gripper_epsilon",
        {"algorithm.gripper": ("discrete",)},
    ),
    ("algorithm.", "exploration_rho", {"algorithm.exploration_noise": ("ar1",)}),
    ("algorithm.", "exploration_hold", {"algorithm.exploration_noise": ("held",)}),
    ("algorithm.", "collection_steps", {"algorithm.offline_episodes": ON, "demo_path": OFF}),
    ("algorithm.", "probe_steps", {"algorithm.use_probing": ON}),
    ("algorithm.", "actor_delay_n_step", {"algorithm.actor_delay_updates": ON}),
    ("algorithm.", "conservative_updates", {"algorithm.conservative_weight": ON}),
    (
        "algorithm.",
        "conservative_remainder",
        {"algorithm.conservative_weight": ON, "algorithm.conservative_updates": ON},
    ),
    ("algorithm.", "critic_smoothing", {"algorithm.critic_atoms": 2}),
    ("algorithm.", "proximal_range", {"algorithm.proximal_penalty": ON}),
    (
        "algorithm.",
        "vision_encoder_weights vision_encoder_seed freeze_vision_encoder image_pooling",
        VISION,
    ),
    (
        "algorithm.",
        "spatial_features",
        {**VISION, "algorithm.image_pooling": ("spatial_embeddings",)},
    ),
    ("algorithm.", "random_shift_pad", {**VISION, "algorithm.freeze_vision_encoder": OFF}),
    ("algorithm.", "image_encoder_hidden_dim", {"algorithm.vision_encoder_name": ("cnn",)}),
    ("algorithm.", "text_encoder_path", {"algorithm.task_embedding": ("text",)}),
    ("algorithm.", "task_embedding_dim", {"algorithm.task_embedding": ON}),
    # of Q-chunking
    (
        "algorithm.",
        "num_candidates target_candidates",
        {"algorithm.improvement": ("best_of_n",)},
    ),
    ("algorithm.", "actor_weight", {"algorithm.improvement": ("distill", "bptt", "sac")}),
    ("algorithm.", "distill_alpha", {"algorithm.improvement": ("distill",)}),
    ("algorithm.", "flow_steps", {"algorithm.actor": ("flow", "lerobot")}),
    ("algorithm.", "actor_tokenizer_path actor_task", {"algorithm.actor": ("lerobot",)}),
    # of all
    ("env.", "image_size", {"env.cameras": ON}),
    (
        "policy.",
        "path dtype compile n_action_steps rename_map features tokenizer_path",
        {"policy.type": ("lerobot",)},
    ),
    (
        "policy.",
        "replicas max_replicas max_batch_size max_wait_ms num_cpus_per_replica "
        "num_gpus_per_replica deadline_s hang_timeout_s",
        POOL,
    ),
    ("placement.", "base_policy base_policy_strategy", POOL),
    ("placement.", "wait_s", {"placement.check": ON}),
    (
        "runners.",
        "publish_interval requests_in_flight stall_timeout_s",
        {"runners.sampling": ("asynchronous",)},
    ),
    ("runners.", "step_timeout_s reset_timeout_s", {"runners.vectorization": ("subprocess",)}),
    ("intervention.", "takeover decay_steps hold_steps", SCRIPTED),
    ("intervention.", "patience_steps", {**SCRIPTED, "intervention.takeover": ("no_progress",)}),
    ("intervention.", "probability", {**SCRIPTED, "intervention.takeover": ("random",)}),
    ("intervention.", "speed fixed_dims", IN_HAND),
    ("intervention.", "hz", {**IN_HAND, "env.control_hz": OFF}),
    ("intervention.", "key_hold_s", {"intervention.device": ("keyboard",)}),
    ("tracking.", "uri experiment run_name", {"tracking.enabled": ON}),
    ("", "demo_episodes", {"demo_path": ON}),
    ("", "norm_stats_mode", {"norm_stats": ON}),
)
"""Group, options of it, and what others must be for them to change anything."""


OF_TRAINING = (
    *("total_steps", "output_dir", "offline_cache", "demo_path", "demo_episodes", "norm_stats"),
    *("dump_interval", "pretrained_critic", "max_failures", "checkpoint.", "tracking."),
    *("evaluation.interval_steps", "evaluation.stop_success"),
)
"""Beginnings of options that change nothing where nothing is learnt."""


def idle_options(config: Any, path: pathlib.Path | None = None, learns: bool = True) -> list[str]:
    """A sentence about each option that differs from its default and changes nothing.

    Args:
        config: of a run.
        path: its file. Nothing is said of a value of it that changes something there, and that
            flags have switched off, nor of what a shipped preset prepares.
        learns: False where episodes are only played.

    Raises:
        ConfigError: the file cannot be read.
    """
    values, of_file = given(config), {}
    if path is not None:
        there = decode(type(config), read_mapping(path))
        of_file = given(there)
        if path.resolve().parent != PRESETS.resolve():
            of_file = {key: of_file[key] for key in of_file.keys() - idle(there).keys()}
    return [
        f"{key}={shown(values[key])} changes nothing: it goes with {' and '.join(missing)}"
        for key, missing in idle(config, learns).items()
        if key not in of_file or of_file[key] != values[key]
    ]


def idle(config: Any, learns: bool = True) -> dict[str, list[str]]:
    """Option that differs from its default and changes nothing -> what it lacks, in words."""
    values = {field.key: value for field, value in values_of(config)}
    needs = {group + name: need for group, names, need in NEEDS for name in names.split()}
    found = {}
    for key in given(config):
        if not learns and key.startswith(OF_TRAINING):
            found[key] = ["pld-ray train"]
        elif lacks := [(k, w) for k, w in needs.get(key, {}).items() if not has(values[k], w)]:
            found[key] = [told(k, values[k], wanted) for k, wanted in lacks]
    return found


def given(config: Any) -> dict[str, Any]:
    """The options that differ from their defaults."""
    return {field.key: value for field, value in values_of(config) if value != field.default}


def has(value: Any, wanted: Wanted) -> bool:
    """Whether an option is what another one needs."""
    if isinstance(wanted, tuple):
        return value in wanted
    if isinstance(wanted, bool):
        return (bool(value) and value != "none") == wanted
    return bool(value >= wanted)


def told(key: str, value: Any, wanted: Wanted) -> str:
    """What an option must be, in words."""
    if isinstance(wanted, tuple):
        return f"{key}={listed(list(wanted))}"
    if not isinstance(wanted, bool):
        return f"{key} of at least {wanted}"
    if isinstance(value, bool):
        return f"{key}={str(wanted).lower()}"
    if wanted is OFF:
        return f"no {key}"
    return f"{key} above 0" if isinstance(value, int | float) else key
