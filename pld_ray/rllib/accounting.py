"""Counting what was sampled: once, and no more than was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pld_ray.rllib.algorithm import ResidualSAC

RECENT = 50  # episodes over which `train/...` figures are taken
RECENT_FIELDS = ("success", "length", "probe_steps")


def account(algorithm: ResidualSAC, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count batches of the runners; the update debt grows by what will be stored.

    Episodes whose first weights are more than `max_staleness` updates old are not stored.

    Returns:
        What the learners are to store.
    """
    feed = []
    algorithm.env_steps += sum(b["num_env_steps"] for b in batches)
    for b in batches:
        algorithm.episodes += len(b["episodes"])
        for episode in b["episodes"]:
            if has_takeover(episode):
                algorithm.schedule.on_episode(episode["success"])
            algorithm.recent_episodes.append({name: episode[name] for name in RECENT_FIELDS})
        stale = stale_episodes(algorithm, b)
        lengths = [n for k, n in enumerate(b["episode_lengths"]) if k not in stale]
        if lengths:
            share = {k: b[k] for k in ("columns", "episode_lengths")}
            share |= {"buffer": "online", "shard": algorithm.next_shard, "skip": stale}
            feed.append(share)
            algorithm.next_shard += 1
        algorithm.stored_steps += sum(lengths)
        algorithm.update_debt += sum(lengths) * algorithm.config.utd
    algorithm.recent_episodes = algorithm.recent_episodes[-RECENT:]
    return feed


def has_takeover(episode: dict[str, Any]) -> bool:
    """Whether the residual acted in it: one that ended while probing is the base policy's own."""
    return episode["length"] > episode["probe_steps"]


def recent_figures(episodes: list[dict[str, Any]]) -> dict[str, float]:
    """`train/...` of the last online episodes; success of those in which the residual acted."""
    success = [episode["success"] for episode in episodes if has_takeover(episode)]
    columns = {
        "train/success_rate": success,
        "train/episode_len_mean": [episode["length"] for episode in episodes],
        "train/probe_steps_mean": [episode["probe_steps"] for episode in episodes],
    }
    return {name: sum(values) / len(values) for name, values in columns.items() if values}


def stale_episodes(algorithm: ResidualSAC, batch: dict[str, Any]) -> list[int]:
    """Which stored episodes of the batch are too old; staleness, in updates, is logged."""
    stored = [e for e in batch["episodes"] if has_takeover(e)]
    staleness = [algorithm.updates - e["weights_updates"] for e in stored]
    for value in staleness:
        algorithm.metrics.log_value("staleness_mean", value, reduce="mean", window=50)
        algorithm.metrics.log_value("staleness_max", value, reduce="max", window=50)
    limit = algorithm.config.max_staleness
    stale = [k for k, value in enumerate(staleness) if limit is not None and value > limit]
    if stale:
        algorithm.metrics.log_value("num_episodes_too_stale", len(stale), reduce="lifetime_sum")
    return stale


def write_off(algorithm: ResidualSAC, lost: int) -> None:
    """Take back what was counted and then died with its node: it is owed no updates."""
    algorithm.stored_steps -= lost
    algorithm.update_debt -= lost * algorithm.config.utd
    if lost:
        algorithm.metrics.log_value("num_env_steps_lost", lost, reduce="lifetime_sum")
