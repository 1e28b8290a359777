"""Where a pool's actors go, and whether the cluster can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def check_fits(needs: Mapping[str, float], replicas: int) -> None:
    """Refuse replicas that the cluster can never hold, instead of waiting for them.

    Raises:
        RuntimeError: no node is large enough for one, or the cluster for all; names the resource.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, amount in needs.items():
        if amount <= 0:
            continue
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        total = sum(node.get(name, 0.0) for node in nodes)
        if amount > largest or amount * replicas > total:
            raise RuntimeError(
                f"the cluster is too small for the base-policy pool: {replicas} replicas need "
                f"{amount:g} {name} each; the largest node has {largest:g} {name}, all nodes "
                f"together {total:g}. Lower the replicas or their share, or add nodes"
            )


def beside_the_driver() -> Any:
    """The controller shares this process's fate, so it lives on its node."""
    if ray.util.get_current_placement_group() is not None:
        return "DEFAULT"  # inside a placement group children are placed where the group says
    node = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node, soft=True)
