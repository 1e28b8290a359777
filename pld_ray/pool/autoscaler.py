"""How many replicas a pool should have. Pure functions of the load and the time."""

from __future__ import annotations

import dataclasses
import math

from pld_ray.pool.spec import PoolSpec

HYSTERESIS = 0.8  # one fewer must be able to do with this share of full batches


@dataclasses.dataclass(frozen=True)
class Pressure:
    """Since when the load asks for more or for fewer replicas."""

    above_since: float | None = None
    below_since: float | None = None


def scale(
    spec: PoolSpec, pressure: Pressure, replicas: int, depth: float, now: float
) -> tuple[int, Pressure]:
    """The number of replicas that there should be: each is meant to carry one full batch.

    Args:
        spec: `replicas` is the least, `max_replicas` the most.
        replicas: how many there are, those that are starting included.
        depth: mean rows in the whole pool, waiting and in work, since the last call.
        now: seconds.

    Returns:
        The number of replicas, and the pressure to hand to the next call.
    """
    target, least = spec.max_batch_size, spec.replicas
    needed = min(max(math.ceil(depth / target), least), spec.max_replicas or least)
    if replicas < least:
        return least, Pressure()
    if needed > replicas:
        since = now if pressure.above_since is None else pressure.above_since
        if now - since >= spec.scale_up_after_s:
            return needed, Pressure()
        return replicas, Pressure(above_since=since)
    if needed < replicas and depth <= HYSTERESIS * target * (replicas - 1):
        since = now if pressure.below_since is None else pressure.below_since
        if now - since >= spec.scale_down_after_s:
            return replicas - 1, Pressure(below_since=now)
        return replicas, Pressure(below_since=since)
    return replicas, Pressure()
