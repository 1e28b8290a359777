"""Builds the vector environment of a runner from its `env_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import ray
from ray.tune.registry import register_env

import envs
from pld_ray.base_policy import BasePolicy, NoBasePolicy, load_base_policy
from pld_ray.rollout.vector_env import BaseActionVectorEnv

ENV_NAME = "pld_ray"
"""Name under which the vector environment is registered with Ray."""

ENV_KEYS = {"suite", "task", "cameras", "image_size", "episode_length", "fast_step"}


def create_vector_env(env_config: Mapping[str, Any]) -> BaseActionVectorEnv:
    """Environments and base policy in one process.

    Args:
        env_config: `suite`, `task`, `cameras`, `image_size`, `episode_length`, `fast_step` (see
            `envs.LiberoEnv`); `num_envs`; `base_policy`: a `BasePolicy` (a pool's client) or
            `type` (`lerobot` or `none`) and the keyword arguments of `load_base_policy`.

    Raises:
        ValueError: a key that is none of these.
    """
    settings = dict(env_config)
    num_envs = int(settings.pop("num_envs", 1))
    policy = settings.pop("base_policy", None) or {}
    unknown = sorted(set(settings) - ENV_KEYS)
    if unknown:
        raise ValueError(f"env_config has unknown keys {unknown}; known are {sorted(ENV_KEYS)}")
    members = [envs.LiberoEnv(**settings) for _ in range(num_envs)]
    return BaseActionVectorEnv(members, make_base_policy(policy, members[0].action_space))


def make_base_policy(policy: BasePolicy | Mapping[str, Any], action_space: gym.Space) -> BasePolicy:
    """A policy as it is, or built from `type` and the arguments of `load_base_policy`."""
    if not isinstance(policy, Mapping):
        return policy
    arguments = dict(policy)
    if arguments.pop("type", "lerobot") == "none":
        return NoBasePolicy((action_space.shape or (0,))[0])
    return load_base_policy(**arguments)


def task_instructions(env_config: Mapping[str, Any]) -> list[str]:
    """The instruction of the configured task, in words; what a task embedding is made of."""
    settings = {key: env_config[key] for key in ("suite", "task") if env_config.get(key)}
    return [envs.LiberoEnv(**settings).task_description]


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
