"""How many replicas a pool should have. Pure functions of the load and the time."""

from __future__ import annotations

import dataclasses
import math

HYSTERESIS = 0.8  # one fewer must be able to do with this share of the target


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Bounds and pace of autoscaling.

    Attributes:
        min_replicas, max_replicas: bounds; equal ones switch scaling off.
        target_depth: rows that wait or are inferred, per replica.
        up_after_s: seconds of higher load before replicas are added, as many as it needs.
        down_after_s: seconds of lower load before one replica is removed, and again.
    """

    min_replicas: int
    max_replicas: int
    target_depth: float
    up_after_s: float = 2.0
    down_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} and max_replicas={self.max_replicas}: the first "
                "must be at least 1 and not above the second"
            )
        if self.target_depth <= 0:
            raise ValueError(f"target_depth must be above 0, not {self.target_depth}")


@dataclasses.dataclass(frozen=True)
class Pressure:
    """Since when the load asks for more or for fewer replicas."""

    above_since: float | None = None
    below_since: float | None = None


def scale(
    scaling: Scaling, pressure: Pressure, replicas: int, depth: float, now: float
) -> tuple[int, Pressure]:
    """The number of replicas that there should be.

    Args:
        replicas: how many there are, those that are starting included.
        depth: mean rows in the whole pool, waiting and in work, since the last call.
        now: seconds.

    Returns:
        The number of replicas, and the pressure to hand to the next call.
    """
    needed = math.ceil(depth / scaling.target_depth)
    needed = min(max(needed, scaling.min_replicas), scaling.max_replicas)
    if replicas < scaling.min_replicas:
        return scaling.min_replicas, Pressure()
    if needed > replicas:
        since = now if pressure.above_since is None else pressure.above_since
        if now - since >= scaling.up_after_s:
            return needed, Pressure()
        return replicas, Pressure(above_since=since)
    suffices = depth <= HYSTERESIS * scaling.target_depth * (replicas - 1)
    if needed < replicas and suffices:
        since = now if pressure.below_since is None else pressure.below_since
        if now - since >= scaling.down_after_s:
            return replicas - 1, Pressure(below_since=now)
        return replicas, Pressure(below_since=since)
    return replicas, Pressure()
