"""Which node a process goes to, when all that a run asks for is laid out on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Resources = dict[str, float]
NOT_COUNTED = ("memory", "object_store_memory")
MARKS = ("node:", "accelerator_type:")
"""Prefixes of what Ray gives a node as its name, or along with its GPUs."""
LITTLE = 1e-9


def unplaced(
    asked: Sequence[tuple[str, Resources]], nodes: Sequence[Mapping[str, float]]
) -> list[tuple[str, Resources]]:
    """What finds no node when everything is placed: what few nodes have first, then the largest."""
    free = [dict(node) for node in nodes]
    ordered = sorted(asked, key=lambda one: need(one[1]), reverse=True)
    return [(role, resources) for role, resources in ordered if not take(resources, free)]


def fit_at_once(wanted: Sequence[Resources], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many groups of bundles the nodes hold at a time, each bundle on one node."""
    free = [dict(node) for node in nodes]
    ordered = sorted(filter(None, wanted), key=need, reverse=True)
    count = 0
    while all(take(bundle, free) for bundle in ordered):
        count += 1
    return count


def need(resources: Resources) -> tuple[float, float]:
    """Orders demands: by GPUs and custom resources, which few nodes have, then by CPUs."""
    cpus = resources.get("CPU", 0.0)
    return sum(resources.values()) - cpus, cpus


def take(resources: Resources, free: Iterable[dict[str, float]]) -> bool:
    """Take them from the node that others need least; False where none has them.

    That is the one with the fewest kinds of resources that are not asked for, and of these the one
    where they just fit.
    """
    fits = [n for n in free if all(n.get(k, 0.0) + LITTLE >= v for k, v in resources.items())]
    if not fits:
        return False

    def regret(node: dict[str, float]) -> tuple[int, float]:
        others = [k for k, v in node.items() if v > LITTLE and k not in resources and counts(k)]
        return len(others), sum(node.get(k, 0.0) - v for k, v in resources.items())

    node = min(fits, key=regret)
    for name, amount in resources.items():
        node[name] = node.get(name, 0.0) - amount
    return True


def counts(name: str) -> bool:
    """Whether a resource is one that demands compete for."""
    return name not in NOT_COUNTED and not name.startswith(MARKS)
