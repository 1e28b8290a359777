"""The scripted expert of an environment that shows it all it needs to know."""

from __future__ import annotations

from collections.abc import Callable

from envs.experts import PickPlaceExpert
from pld_ray.rollout.vector_env import BaseActionVectorEnv


def expert_maker(env: BaseActionVectorEnv) -> Callable[[int], PickPlaceExpert]:
    """Makes a scripted expert for an environment of this process, as it is then.

    Raises:
        ValueError: the environments live elsewhere, or know no expert.
    """
    if not env.envs:
        raise ValueError(
            "the scripted expert sees the simulator, so it must run in the same process: set "
            "runners.vectorization=in_process"
        )
    if not hasattr(env.envs[0], "expert_view"):
        raise ValueError(
            f"{type(env.envs[0]).__name__} has no expert_view, so there is no scripted expert "
            "for it: record the base policy or a checkpoint"
        )
    return lambda i: PickPlaceExpert(env.envs[i])
