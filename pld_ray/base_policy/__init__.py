"""Frozen base policies: what they must answer, LeRobot checkpoints, chunk playing, the Ray pool.

Nothing here knows environments, networks or replay. LeRobot takes many seconds to import and Ray
is not needed by inline policies, so the names that need them are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pld_ray.base_policy.checkpoint import EMBEDDED_ACT
from pld_ray.base_policy.chunk_cache import ChunkCache
from pld_ray.base_policy.no_policy import NoBasePolicy, base_policy_fingerprint
from pld_ray.base_policy.protocol import BasePolicy

if TYPE_CHECKING:
    from pld_ray.base_policy.lerobot_adapter import LeRobotBasePolicy, load_base_policy
    from pld_ray.base_policy.pool import BasePolicyPool
    from pld_ray.base_policy.pool_client import PoolClient

__all__ = [
    "EMBEDDED_ACT",
    "BasePolicy",
    "BasePolicyPool",
    "ChunkCache",
    "LeRobotBasePolicy",
    "NoBasePolicy",
    "PoolClient",
    "base_policy_fingerprint",
    "load_base_policy",
]

_ON_FIRST_USE = {
    "LeRobotBasePolicy": "lerobot_adapter",
    "load_base_policy": "lerobot_adapter",
    "BasePolicyPool": "pool",
    "PoolClient": "pool_client",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        module = importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
