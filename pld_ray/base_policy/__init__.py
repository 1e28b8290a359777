"""Frozen base policies: what they must answer, LeRobot checkpoints, chunk playing, the Ray pool.

Nothing here knows environments, networks or replay. `BasePolicyPool` is imported on first use, so
that inline placement needs no Ray.
"""

from typing import TYPE_CHECKING, Any

from pld_ray.base_policy.checkpoint import EMBEDDED_ACT
from pld_ray.base_policy.chunk_cache import ChunkCache
from pld_ray.base_policy.lerobot_adapter import LeRobotBasePolicy, load_base_policy
from pld_ray.base_policy.protocol import BasePolicy

if TYPE_CHECKING:
    from pld_ray.base_policy.pool import BasePolicyPool, PoolClient

__all__ = [
    "EMBEDDED_ACT",
    "BasePolicy",
    "BasePolicyPool",
    "ChunkCache",
    "LeRobotBasePolicy",
    "PoolClient",
    "load_base_policy",
]


def __getattr__(name: str) -> Any:
    if name in ("BasePolicyPool", "PoolClient"):
        from pld_ray.base_policy import pool

        return getattr(pool, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
