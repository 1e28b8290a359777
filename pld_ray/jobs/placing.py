"""Which node a process goes to, when all that a run asks for is laid out on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Resources = dict[str, float]
Cost = Callable[[Resources, Mapping[str, float]], Any]
"""Of taking resources from a node."""
NOT_COUNTED = ("memory", "object_store_memory")
MARKS = ("node:", "accelerator_type:")
"""Prefixes of what Ray gives a node as its name, or along with its GPUs."""
LITTLE = 1e-9


def unplaced(
    asked: Sequence[tuple[str, Resources]], nodes: Sequence[Mapping[str, float]]
) -> list[tuple[str, Resources]]:
    """What finds no node when everything is placed: what few nodes have first, then the largest.

    No order is best for all clusters: what one leaves over may fit in another.
    """
    left = left_over(asked, nodes, need, regret)
    if left and not left_over(asked, nodes, by_name, waste):
        return []
    return left


def left_over(
    asked: Sequence[tuple[str, Resources]],
    nodes: Sequence[Mapping[str, float]],
    order: Callable[[Resources], Any],
    cost: Cost,
) -> list[tuple[str, Resources]]:
    """What finds no node when the highest in the order goes first, to the node that costs least."""
    free = [dict(node) for node in nodes]
    ordered = sorted(asked, key=lambda one: order(one[1]), reverse=True)
    return [(role, resources) for role, resources in ordered if not take(resources, free, cost)]


def fit_at_once(wanted: Sequence[Resources], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many groups of bundles the nodes hold at a time, each bundle on one node."""
    free = [dict(node) for node in nodes]
    ordered = sorted(filter(None, wanted), key=need, reverse=True)
    count = 0
    while all(take(bundle, free, regret) for bundle in ordered):
        count += 1
    return count


def need(resources: Resources) -> tuple[float, float]:
    """Orders demands: by GPUs and custom resources, which few nodes have, then by CPUs."""
    cpus = resources.get("CPU", 0.0)
    return sum(resources.values()) - cpus, cpus


def by_name(resources: Resources) -> list[tuple[str, float]]:
    """Orders demands by the names of what they ask for, CPUs first."""
    return sorted(resources.items())


def regret(resources: Resources, node: Mapping[str, float]) -> tuple[int, float]:
    """Least for the node that others need least: with the fewest kinds of resources that are not
    asked for, and of these the one where they just fit."""
    others = [k for k, v in node.items() if v > LITTLE and k not in resources and counts(k)]
    return len(others), waste(resources, node)


def waste(resources: Resources, node: Mapping[str, float]) -> float:
    """Least for the node where they just fit."""
    return sum(node.get(k, 0.0) - v for k, v in resources.items())


def take(resources: Resources, free: Iterable[dict[str, float]], cost: Cost) -> bool:
    """Take them from the node that costs least; False where none has them."""
    fits = [n for n in free if all(n.get(k, 0.0) + LITTLE >= v for k, v in resources.items())]
    if not fits:
        return False
    node = min(fits, key=lambda node: cost(resources, node))
    for name, amount in resources.items():
        node[name] = node.get(name, 0.0) - amount
    return True


def without_marks(resources: Mapping[str, float]) -> Resources:
    """What people are told: without memory and the nodes' names."""
    return {
        name: amount
        for name, amount in resources.items()
        if name not in NOT_COUNTED and not name.startswith("node:")
    }


def counts(name: str) -> bool:
    """Whether a resource is one that demands compete for."""
    return name not in NOT_COUNTED and not name.startswith(MARKS)
