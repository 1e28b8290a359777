"""RLlib settings that would change nothing here: refused, with what does."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.tune.registry import ENV_CREATOR, _global_registry
from ray.tune.search.sample import Domain

from pld_ray.options import fields_of, fits, shown, unfit
from pld_ray.rollout import factory

LEARNING_RATES = "training(actor_lr=..., critic_lr=...)"
OWN_ENV = 'environment(env_config={"entry_point": "module:Class", "kwargs": {...}})'
WHAT_IS_GIVEN = "an environment that gives what the policy is to see"
INSTEAD = {
    "training(lr)": ("lr", LEARNING_RATES),
    "training(grad_clip)": ("grad_clip", "training(grad_clip_norm=...)"),
    "training(train_batch_size)": ("train_batch_size", "training(batch_size=...)"),
    "training(num_epochs)": ("num_epochs", "training(utd=...)"),
    "training(minibatch_size)": ("minibatch_size", "training(batch_size=...)"),
    "training(learner_connector)": ("_learner_connector", WHAT_IS_GIVEN),
    "env_runners(env_to_module_connector)": ("_env_to_module_connector", WHAT_IS_GIVEN),
    "env_runners(module_to_env_connector)": ("_module_to_env_connector", WHAT_IS_GIVEN),
    "env_runners(gym_env_vectorize_mode)": (
        "gym_env_vectorize_mode",
        'environment(env_config={"vectorization": "in_process" or "subprocess"})',
    ),
    "env_runners(sample_timeout_s)": (
        "sample_timeout_s",
        'training(stall_timeout_s=...), with sampling="asynchronous"',
    ),
    "evaluation(evaluation_duration)": (
        "evaluation_duration",
        "evaluation(held_init_states=[...]), each of which is played once",
    ),
    "evaluation(evaluation_duration_unit)": (
        "evaluation_duration_unit",
        "evaluation(held_init_states=[...]), each of which is played once",
    ),
    "rl_module(model_config)": ("_model_config", "training(hidden_dims=[...])"),
    "reporting(min_train_timesteps_per_iteration)": (
        "min_train_timesteps_per_iteration",
        "reporting(min_sample_timesteps_per_iteration=...)",
    ),
    "offline_data(input_)": ("input_", "training(demo_path=...)"),
}
"""Setting -> the configuration's attribute, and what to use in its place."""
IN_TRAINING = {
    "env_runners(rollout_fragment_length)": (
        "rollout_fragment_length",
        "training(sample_steps=...)",
    )
}
"""The same of settings to which RLlib itself gives another value for evaluations."""
COUNTS = {
    "env_runners(num_env_runners)": "runners.num_env_runners",
    "env_runners(num_envs_per_env_runner)": "runners.num_envs_per_env_runner",
    "learners(num_learners)": "runners.num_learners",
    "evaluation(evaluation_num_env_runners)": "evaluation.num_env_runners",
}
"""Setting -> the option of the command line that declares what it takes."""
EXPLORING = "training's options of exploration; evaluations play without it"
OF_EPISODES = (
    *("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"),
    "on_sample_end",
)
"""Callbacks of RLlib's own sampling, which is not how these runners sample."""


def check_settings(config: Any) -> None:
    """Refuse what would be ignored, or end in an error of RLlib's that names nothing.

    Args:
        config: an `OffPolicyConfig`, of training or of evaluation.

    Raises:
        ValueError: naming the setting and what to use in its place.
    """
    check_usual(config, INSTEAD)
    seed = config.seed
    if seed is not None and not (isinstance(seed, int | np.integer) and 0 <= seed < 2**31):
        raise ValueError(f"debugging(seed={seed!r}): must be a whole number from 0 to 2**31 - 1")
    for name in OF_EPISODES:
        if getattr(config, f"callbacks_{name}") or overrides(config.callbacks_class, name):
            raise ValueError(
                f"callbacks({name}) would never be called: env runners here do not sample as "
                "RLlib's; use on_train_result, whose result has the figures of the episodes"
            )
    check_api(config)
    if not config.in_evaluation:
        check_training(config)


def check_usual(config: Any, table: Mapping[str, tuple[str, str]]) -> None:
    """Refuse another value than the default of a setting that changes nothing."""
    usual = type(config)()
    for setting, (name, instead) in table.items():
        if getattr(config, name) != getattr(usual, name):
            raise ValueError(f"{setting} changes nothing here: use {instead}")


def check_api(config: Any) -> None:
    """The new API stack, for one agent, in an environment that can be made."""
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise ValueError("api_stack(): only RLlib's new API stack is supported")
    if config.is_multi_agent:
        raise ValueError("multi_agent(): there is one agent")
    env = config.env
    if env == factory.ENV_NAME:  # known to Ray at the latest when the algorithm is set up
        return
    if not isinstance(env, str) or not _global_registry.contains(ENV_CREATOR, env):
        name = getattr(env, "__name__", env)
        raise ValueError(f"environment({name}): use {OWN_ENV}")


def no_vector_env(name: Any) -> TypeError:
    """What to raise where a registered environment is not one that env runners here can step."""
    return TypeError(
        f"environment({name!r}) must make a pld_ray.rollout.vector_env.BaseActionVectorEnv of its "
        f"num_envs; for a gymnasium environment use {OWN_ENV}"
    )


def check_training(config: Any) -> None:
    """What is asked of the configuration of training, and not of that of evaluations."""
    check_usual(config, IN_TRAINING)
    declared = {field.key: field for field in fields_of(config.run_class)}
    for setting, key in COUNTS.items():
        field, value = declared[key], getattr(config, setting.partition("(")[2][:-1])
        if not fits(value, field.hint, field.option):
            raise ValueError(unfit(setting, value, field))
    if not config.explore:
        raise ValueError(f"env_runners(explore=False) changes nothing here: use {EXPLORING}")
    states = config.held_init_states
    if not states or not all(
        isinstance(state, int | np.integer) and state >= 0 for state in states
    ):
        raise ValueError(
            f"evaluation(held_init_states={states!r}): must be ids of init states, 0 or more each"
        )
    given = config.evaluation_config
    if isinstance(given, Mapping) and "held_init_states" in given:
        raise ValueError(
            "evaluation_config: held_init_states changes nothing there: use "
            "evaluation(held_init_states=[...])"
        )
    check_together(config)
    if config.env != factory.ENV_NAME:
        return
    if "num_envs" in config.env_config:
        raise ValueError(
            "env_config: num_envs changes nothing here: use "
            "env_runners(num_envs_per_env_runner=...)"
        )
    factory.check(config.env_config)


def check_together(config: Any) -> None:
    """Options of which one leaves nothing to another, as the command line refuses them."""
    if config.control_hz is not None and config.num_envs_per_env_runner != 1:
        raise ValueError(
            "training(control_hz) is the rate of one robot: set "
            "env_runners(num_envs_per_env_runner=1)"
        )
    if config.norm_stats is None:
        return
    if not config.normalize_observations:
        raise ValueError("training(norm_stats) is of no use with normalize_observations=False")
    if config.pretrained_critic is not None:
        raise ValueError(
            "training(norm_stats, pretrained_critic) exclude each other: a critic keeps the "
            "statistics that it was trained under"
        )


def other_name_of(name: str) -> property:
    """An attribute that is another one, so that a search over either is over one."""
    return property(
        lambda config: getattr(config, name), lambda config, value: setattr(config, name, value)
    )


def overrides(classes: Any, name: str) -> bool:
    """Whether a callback class, or one of several, has a method of its own; what RLlib makes of
    several classes has all, and is not asked."""
    several = classes if isinstance(classes, list | tuple) else [classes]
    return any(
        getattr(each, name, None) is not getattr(RLlibCallback, name)
        for each in several
        if isinstance(each, type) and not each.__module__.startswith("ray.rllib.")
    )


def check_names(method: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that a method does not take, with the closest one that it takes.

    Raises:
        TypeError: naming it.
    """
    for name in {*given} - {*known}:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"{method}({name}) does not exist{hint}")


def check_mapping(setting: str, value: Any) -> None:
    """Refuse what is no mapping of names.

    Raises:
        ValueError: naming the setting.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{setting}={shown(value)}: must be a mapping of names to values")


def without_search_space(method: str, options: Mapping[str, Any], taken: type) -> None:
    """Refuse names that are no field of `taken`, and a Tune search space in options that Tune does
    not look into.

    Raises:
        TypeError, ValueError: naming the option.
    """
    check_names(method, options, [field.name for field in dataclasses.fields(taken)])
    for name, value in options.items():
        if isinstance(value, Domain) or (isinstance(value, Mapping) and "grid_search" in value):
            raise ValueError(
                f"{method}({name}): Tune does not look for a search space there; give "
                "param_space a configuration each, or sweep with pld-ray sweep"
            )
