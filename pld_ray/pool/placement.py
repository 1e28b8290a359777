"""Where Ray puts a pool's actors: in the placement group of who made it, or where there is room."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pld_ray.errors import UserError
from pld_ray.pool.spec import PoolSpec


class PoolError(UserError, RuntimeError):
    """A pool cannot be started; the message says why, and what to change."""


def handed_on() -> Any:
    """The placement group in which this process's actors are placed; None if there is none."""
    captures = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
    return ray.util.get_current_placement_group() if captures else None


def beside_the_driver() -> Any:
    """The controller shares this process's fate, so it lives on its node; in a placement group,
    with its replicas, where the group says."""
    if handed_on() is not None:
        return None  # Ray hands a group on to actors that name no strategy, not even the default
    node = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node, soft=True)


def of_replica(strategy: str) -> str | None:
    """`DEFAULT` or `SPREAD` for a replica; in a placement group the group's own strategy holds."""
    if strategy == "DEFAULT" or handed_on() is not None:
        return None
    return strategy


def check_group(spec: PoolSpec) -> None:
    """Refuse replicas that the placement group of this process can never hold.

    Raises:
        PoolError: none of its bundles has room for one; names what they have.
    """
    group = handed_on()
    if group is None:
        return
    needs, bundles = spec.needs(), group.bundle_specs
    if not any(all(b.get(name, 0.0) >= n for name, n in needs.items()) for b in bundles):
        raise PoolError(
            f"the placement group is too small for the base-policy pool: a replica needs {needs} "
            f"and its bundles are {bundles}. Reserve a bundle for each replica"
        )
