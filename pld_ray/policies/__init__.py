"""Frozen base policies: what they must answer, LeRobot checkpoints, chunk playing.

Nothing here knows environments, networks, replay or Ray.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pld_ray.policies.checkpoint import EMBEDDED_ACT, EXPORTED, open_checkpoint
from pld_ray.policies.chunk_cache import ChunkCache
from pld_ray.policies.no_policy import NoBasePolicy, base_policy_fingerprint
from pld_ray.policies.protocol import BasePolicy, PolicyDescription, Prediction

__all__ = [
    "EMBEDDED_ACT",
    "BasePolicy",
    "ChunkCache",
    "NoBasePolicy",
    "PolicyDescription",
    "Prediction",
    "base_policy_fingerprint",
    "load_base_policy",
]


def load_base_policy(path: str | Path | None = None, **options: Any) -> BasePolicy:
    """A `LeRobotBasePolicy`, whose arguments these are, or a policy of `pld-ray export`.

    LeRobot takes many seconds to import.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.policy_type == EXPORTED:
        from pld_ray.policies.exported import load_policy

        return load_policy(checkpoint, **options)
    from pld_ray.policies.lerobot_adapter import LeRobotBasePolicy

    return LeRobotBasePolicy(path, **options)
