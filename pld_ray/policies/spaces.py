"""Spaces of an environment as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np


def describe_spaces(observations: gym.spaces.Dict, actions: gym.Space) -> dict[str, Any]:
    """An environment's spaces as JSON: `observations` by name, and `actions`."""
    described = {key: describe_space(space) for key, space in observations.spaces.items()}
    return {"observations": described, "actions": describe_space(actions)}


def make_spaces(
    observations: Mapping[str, Any], actions: Mapping[str, Any]
) -> tuple[gym.spaces.Dict, gym.spaces.Box]:
    """What `describe_spaces` described."""
    spaces = gym.spaces.Dict({key: make_space(space) for key, space in observations.items()})
    return spaces, make_space(actions)


def shapes_of(observations: gym.spaces.Dict) -> dict[str, tuple[int, ...]]:
    """Name -> shape of one observation."""
    return {key: tuple(space.shape or ()) for key, space in observations.spaces.items()}


def describe_space(space: Any) -> dict[str, Any]:
    """A Box as JSON."""
    return {
        "shape": list(space.shape or ()),
        "dtype": str(space.dtype),
        "low": bound(space.low),
        "high": bound(space.high),
    }


def bound(values: np.ndarray) -> Any:
    """One number where all are equal, else a nested list; infinities as text."""
    flat = np.unique(values)
    return str(flat[0]) if flat.size == 1 else values.tolist()


def make_space(description: Mapping[str, Any]) -> gym.spaces.Box:
    """What `describe_space` described."""
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (
        np.broadcast_to(np.asarray(description[end], np.float64), shape).astype(dtype)
        for end in ("low", "high")
    )
    return gym.spaces.Box(low, high, shape, dtype.type)
