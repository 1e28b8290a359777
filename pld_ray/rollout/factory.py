"""Builds the vector environment of a runner from its `env_config`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import ray
from ray.tune.registry import ENV_CREATOR, _global_registry, register_env

import envs
from pld_ray.config.groups import ROBOT_ENV
from pld_ray.config.policy import PolicyConfig
from pld_ray.data.demonstrations import Wanted
from pld_ray.policies import EMBEDDED_ACT, BasePolicy, NoBasePolicy
from pld_ray.policies.protocol import check_acts
from pld_ray.rollout.classifier_reward import classified
from pld_ray.rollout.entry_point import environment_class
from pld_ray.rollout.env_group import EnvGroup, InProcessEnvs, MakeEnv
from pld_ray.rollout.subprocess_envs import SubprocessEnvs
from pld_ray.rollout.vector_env import BaseActionVectorEnv, check_policy_matches

ENV_NAME = "pld_ray"
"""Name under which the vector environment is registered with Ray."""

ENV_KEYS = set(inspect.signature(envs.LiberoEnv).parameters)
CLASSIFIER = "reward_classifier"
TOPPLED = "terminate_when_toppled"
VECTORIZATIONS = ("in_process", "subprocess")
VECTOR_KEYS = {"num_envs", "base_policy", "prefetch", "vectorization"} | {
    f"{what}_timeout_s" for what in ("step", "reset")
}


def create_vector_env(env_config: Mapping[str, Any]) -> BaseActionVectorEnv:
    """Environments and base policy of one runner.

    Args:
        env_config: the arguments of `envs.LiberoEnv`; `num_envs`; `base_policy`: a `BasePolicy` (a
            pool's client) or `type` (`lerobot` or `none`) and the keyword arguments of
            `load_base_policy`; `prefetch`, see `ChunkCache`; `vectorization`: `in_process` (stepped
            in turn) or `subprocess` (a process each), with `step_timeout_s` and `reset_timeout_s`.
            For another gymnasium environment `entry_point`, as "module:class", with `kwargs`.
            `reward_classifier`: folder of one that judges, see `ClassifierReward`.

    Raises:
        ValueError: a key that is none of these, or an entry point that does not exist.
    """
    settings, vector = divided(env_config)
    policy = vector.get("base_policy") or {}
    vectorization = vector.get("vectorization", "in_process")
    makers = [env_maker(settings)] * int(vector.get("num_envs", 1))
    if vectorization not in VECTORIZATIONS:
        raise ValueError(f"vectorization={vectorization!r}: must be one of {VECTORIZATIONS}")
    group: EnvGroup
    if vectorization == "subprocess":
        timeouts = {k: vector[k] for k in ("step_timeout_s", "reset_timeout_s") if k in vector}
        group = SubprocessEnvs(makers, **timeouts)
    else:
        group = InProcessEnvs(makers)
    made = make_base_policy(policy, group.action_space)
    return BaseActionVectorEnv(group, made, bool(vector.get("prefetch", False)))


def divided(env_config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `env_maker` takes of a runner's `env_config`, and what its vector takes."""
    vector = {key: value for key, value in env_config.items() if key in VECTOR_KEYS}
    return {k: value for k, value in env_config.items() if k not in vector}, vector


def env_maker(settings: Mapping[str, Any]) -> MakeEnv:
    """A picklable function that makes one environment from its settings."""
    if folder := settings.get(CLASSIFIER):
        return classified(env_maker(unjudged(settings)), folder)
    entry_point, suite = settings.get("entry_point"), settings.get("suite", "")
    if not isinstance(suite, str):
        raise ValueError(f"env_config: suite={suite!r} must be a text")
    if not isinstance(settings.get("kwargs") or {}, Mapping):
        raise ValueError(
            f"env_config: kwargs={settings['kwargs']!r} must be a mapping of arguments"
        )
    known = ENV_KEYS if entry_point is None else {"entry_point", "kwargs", "render_mode"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"env_config has unknown keys {unknown}; known are {sorted(known)}")
    if entry_point is None:
        return functools.partial(envs.LiberoEnv, **settings)
    make: Any = environment_class(entry_point)
    render_mode = {"render_mode": settings["render_mode"]} if "render_mode" in settings else {}
    return functools.partial(make, **(settings.get("kwargs") or {}), **render_mode)


def check(env_config: Mapping[str, Any]) -> None:
    """Refuse what no environment could be made of, without making one.

    Raises:
        ValueError: an unknown key, suite or task, or an entry point that does not exist.
    """
    env_maker(divided(env_config)[0])
    task_instructions(env_config, read=False)


def unjudged(env_config: Mapping[str, Any]) -> dict[str, Any]:
    """The same environment with its own reward."""
    return {name: value for name, value in env_config.items() if name != CLASSIFIER}


def for_evaluation(env_config: Mapping[str, Any]) -> dict[str, Any]:
    """The environment with its own reward, which a robot has not: there the classifier judges. And
    with whole episodes."""
    if is_robot(env_config):
        return dict(env_config)
    return {name: value for name, value in unjudged(env_config).items() if name != TOPPLED}


def is_robot(env_config: Mapping[str, Any]) -> bool:
    """Whether it is an arm that LeRobot drives."""
    return bool(env_config.get("entry_point") == ROBOT_ENV)


def make_env(name: str, env_config: Mapping[str, Any]) -> Any:
    """The vector environment that is registered with Ray as `name`."""
    if name == ENV_NAME:
        return create_vector_env(env_config)
    return _global_registry.get(ENV_CREATOR, name)(env_config)


def make_base_policy(policy: BasePolicy | Mapping[str, Any], action_space: gym.Space) -> BasePolicy:
    """A policy as it is, or built from `type` and the arguments of `load_base_policy`."""
    if not isinstance(policy, Mapping):
        return policy
    arguments = dict(policy)
    if arguments.pop("type", "lerobot") == "none":
        return NoBasePolicy((action_space.shape or (0,))[0])
    # here: LeRobot costs 300 MB and seconds in every process, also in a pool's clients
    from pld_ray.policies import load_base_policy

    return load_base_policy(**arguments)


def open_base_policy(
    config: PolicyConfig, observations: gym.Space, actions: gym.Space
) -> tuple[BasePolicy, gym.spaces.Dict, gym.spaces.Box]:
    """The policy of a run, which has answered once, and the environment's spaces that it fits.

    Raises:
        FileNotFoundError, ValueError: it cannot be loaded, does not fit, or does not answer.
    """
    policy = make_base_policy(config.settings(), actions)
    spaces = check_policy_matches(policy, observations, actions)
    if config.placement == "inline" and not config.compile:  # a pool warms up where its GPU is
        check_acts(policy, f"base policy {config.path or EMBEDDED_ACT}")
    return policy, *spaces


def wanted_of(
    observations: gym.Space, actions: gym.Space, cameras: Collection[str], env_config: Any
) -> Wanted:
    """What a dataset must have to be learnt from in this environment.

    Args:
        observations, actions: the environment's own spaces.
        cameras: columns of images that somebody reads; others are not asked for.
        env_config: of the runners.
    """
    space: Any = actions
    spaces: Any = observations
    shapes = {
        name: tuple(each.shape or ())
        for name, each in spaces.items()
        if len(each.shape or ()) < 3 or name in cameras
    }
    name = str(env_config.get("entry_point") or env_config.get("task") or "the environment")
    return Wanted(shapes, space.low, space.high, steps_per_second(env_config), name)


def steps_per_second(env_config: Mapping[str, Any]) -> float | None:
    """The environment's steps per second: a robot's control rate, else gymnasium's `render_fps`;
    None where it is not told."""
    if is_robot(env_config):
        return float(env_config["kwargs"]["control_hz"])
    entry_point = env_config.get("entry_point")
    made: Any = environment_class(entry_point) if entry_point else envs.LiberoEnv
    metadata = getattr(made, "metadata", None)  # of a wrapper's class a property
    return metadata.get("render_fps") if isinstance(metadata, Mapping) else None


def task_instructions(env_config: Mapping[str, Any], read: bool = True) -> list[str]:
    """The instruction of the configured task, in words; what a task embedding is made of.

    Args:
        env_config: of the runners.
        read: whether anything reads it. The info of an `entry_point` tells it, which is not made
            and reset for nothing.
    """
    if is_robot(env_config):
        return [str(env_config["kwargs"]["task"])]
    if entry_point := env_config.get("entry_point"):
        if not read:
            return [""]
        return [told_instruction(entry_point, env_config.get("kwargs") or {})]
    settings = {key: env_config[key] for key in ("suite", "task") if env_config.get(key)}
    return [envs.LiberoEnv(**settings).task_description]


_told: dict[str, str] = {}


def told_instruction(entry_point: str, kwargs: Mapping[str, Any]) -> str:
    """What the info of another environment says of its task after a reset; it is made for that,
    once in a process."""
    key = repr((entry_point, kwargs))
    if key not in _told:
        made: Any = env_maker({"entry_point": entry_point, "kwargs": kwargs})()
        with contextlib.closing(made) as env:
            _told[key] = str(env.reset(seed=0, options={"init_state_id": 0})[1].get("task", ""))
    return _told[key]


_registered = False


def register() -> None:
    """Make `ENV_NAME` known to Ray; safe to call again, and again after `ray.shutdown()`.

    After a shutdown Ray's registry would start a cluster of its own to write into; the name is then
    registered when the algorithm is set up, in the cluster that it runs in.
    """
    global _registered
    if ray.is_initialized() or not _registered:
        register_env(ENV_NAME, create_vector_env)
        _registered = True
