"""Frozen base policies: what they must answer, LeRobot checkpoints, chunk playing.

Nothing here knows environments, networks, replay or Ray. LeRobot takes many seconds to import, so
the names that need it are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from pld_ray.policies.checkpoint import EMBEDDED_ACT
from pld_ray.policies.chunk_cache import ChunkCache
from pld_ray.policies.no_policy import NoBasePolicy, base_policy_fingerprint
from pld_ray.policies.protocol import BasePolicy

if TYPE_CHECKING:
    from pld_ray.policies.lerobot_adapter import LeRobotBasePolicy, load_base_policy

__all__ = [
    "EMBEDDED_ACT",
    "BasePolicy",
    "ChunkCache",
    "LeRobotBasePolicy",
    "NoBasePolicy",
    "base_policy_fingerprint",
    "load_base_policy",
]


def __getattr__(name: str) -> Any:
    if name in ("LeRobotBasePolicy", "load_base_policy"):
        return getattr(importlib.import_module("pld_ray.policies.lerobot_adapter"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
