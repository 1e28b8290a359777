"""What travels between runners, driver and learner."""

from __future__ import annotations

import pathlib
import traceback
from dataclasses import dataclass
from typing import Any

import ray

from pld_ray.errors import UserError


class EnvRunnerError(UserError, RuntimeError):
    """Something in a runner raised; the message says what and where."""


@dataclass(frozen=True)
class PublishedWeights:
    """What runners act with: the module's inference state, and how many updates it has seen."""

    updates: int
    state: Any
    """Reference to the state in the object store."""


def fetch_columns(columns: Any) -> Any:
    """The columns behind a reference (or themselves); None if they died with their node."""
    if not isinstance(columns, ray.ObjectRef):
        return columns
    try:
        return ray.get(columns)
    except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError):
        return None


def describe_error(error: Exception) -> str:
    """What was raised, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({pathlib.Path(where.filename).name}:{where.lineno})"


def check_batches(batches: list[dict[str, Any]]) -> None:
    """Raise EnvRunnerError if a runner told of an error instead of a batch."""
    for batch in batches:
        if "error" in batch:
            raise EnvRunnerError(f"an env runner cannot go on: {batch['error']}")
