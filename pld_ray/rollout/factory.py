"""Builds the vector environment of a runner from its `env_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.registry import register_env

import envs
from pld_ray.base_policy import BasePolicy, load_base_policy
from pld_ray.rollout.vector_env import BaseActionVectorEnv

ENV_NAME = "pld_ray"
"""Name under which the vector environment is registered with Ray."""

ENV_KEYS = {"suite", "task", "cameras", "image_size", "episode_length", "fast_step"}


def create_vector_env(env_config: Mapping[str, Any]) -> BaseActionVectorEnv:
    """Environments and base policy in one process.

    Args:
        env_config: `suite`, `task`, `cameras`, `image_size`, `episode_length`, `fast_step` (see
            `envs.LiberoEnv`); `num_envs`; `base_policy`: a `BasePolicy` (a pool's client) or the
            keyword arguments of `load_base_policy`.

    Raises:
        ValueError: a key that is none of these.
    """
    settings = dict(env_config)
    num_envs = int(settings.pop("num_envs", 1))
    policy = settings.pop("base_policy", None) or {}
    unknown = sorted(set(settings) - ENV_KEYS)
    if unknown:
        raise ValueError(f"env_config has unknown keys {unknown}; known are {sorted(ENV_KEYS)}")
    base_policy: BasePolicy = load_base_policy(**policy) if isinstance(policy, Mapping) else policy
    return BaseActionVectorEnv([envs.LiberoEnv(**settings) for _ in range(num_envs)], base_policy)


def register() -> None:
    """Make `ENV_NAME` known to Ray; safe to call again."""
    register_env(ENV_NAME, create_vector_env)
