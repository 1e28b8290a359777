"""Q-chunking's offline updates of a miniature, by processes that train together."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from several_ranks import SMALL, held_bytes
from tiny_actor import episodes, make_parts

from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.files.state_tree import load_tree, save_tree
from pld_ray.sharded.chunked import (
    ShardedUpdate,
    make_optimizers,
    shard_networks,
    take_networks,
    take_optimizer_state,
    whole_optimizer_state,
    whole_state,
)
from pld_ray.sharded.ranks import Ranks
from pld_ray.sharded.shards import Sharding

STORED = episodes((5, 9, 6, 7), (True, False, True, False))
OPTIONS = {
    "batch_size": 6,
    "accumulation": 3,  # the second of two ranks has one that counts for nothing
    "grad_clip_norm": 0.5,
    "bc_weight": 1.0,
    "critic_dropout": 0.1,
    "num_critics": 3,
    "ema_decay": 0.9,
    "fusion": "mlp",
    "latent_dim": 8,
    "actor_lr": 1e-4,
}


def trained(
    ranks: Ranks,
    folder: pathlib.Path,
    out: str,
    updates: int,
    begin: str | None = None,
    **options: Any,
) -> None:
    """So many updates, from the beginning or from a state; writes the state."""
    policy = folder / "checkpoint", folder / "tokenizer"
    networks, replay, params = make_parts(policy, stored=STORED, **{**OPTIONS, **options})
    whole = held_bytes(networks.actor)
    if ranks.number > 1:
        shard_networks(networks, Sharding(ranks, SMALL, "cpu"), "smolvla")
    optimizers = make_optimizers(networks, params)
    update = ShardedUpdate(networks, optimizers, replay, params, 3, ranks)
    groups = trained_parameters(networks)
    if begin is not None:
        tree = load_tree(folder / begin)
        take_networks(networks, tree["networks"])
        for name, optimizer in optimizers.items():
            take_optimizer_state(optimizer, groups[name], tree[name])
        update.load_state_dict(tree["update"])
    means = update.run(updates)
    tree = {name: whole_optimizer_state(o, groups[name], ranks) for name, o in optimizers.items()}
    tree["networks"] = whole_state(networks.state_dict(), ranks)
    tree["update"] = update.state_dict()
    tree["means"] = {k: means[k] for k in ("flow_loss", "critic_loss", "flow_grad_norm")}
    tree["share"] = held_bytes(networks.actor) / whole
    if ranks.first:
        save_tree(folder / out, tree)


def two_first(ranks: Ranks, folder: pathlib.Path) -> None:
    """Straight on, the beginning of what changes, and another improvement."""
    trained(ranks, folder, "two", 3)
    trained(ranks, folder, "two-first", 1)
    trained(ranks, folder, "two-bptt", 1, improvement="bptt")


def difference(one: Any, other: Any) -> float:
    """The greatest one of any weight or moment."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max([difference(one[k], other[k]) for k in one], default=0.0)
    if isinstance(one, list):
        return max(difference(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.ndarray) and one.size:
        assert one.shape == other.shape
        apart = one != other  # infinite limits are alike, and have no difference
        return float(np.abs(one[apart].astype(np.float64) - other[apart]).max(initial=0.0))
    return 0.0


def networks_and_moments(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """Of a state."""
    tree = load_tree(folder / name)
    return {key: tree[key] for key in ("networks", "flow", "critic")}
