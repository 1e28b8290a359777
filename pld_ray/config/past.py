"""What a configuration of an earlier release means by what it does not mention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT: dict[str, Any] = {"success_imitation": 0.0, "ema_decay": 0.0, "precision": "float32"}
"""Options of the residual learner that are on by default; before they existed they were off."""


def with_absent(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A residual run's own configuration, complete: what its release did not have stays off."""
    algorithm = mapping.get("algorithm")
    if not isinstance(algorithm, Mapping) or algorithm.get("name"):
        return dict(mapping)
    return {**mapping, "algorithm": {**ABSENT, **algorithm}}
