"""Base actions for episodes that somebody else recorded: what the frozen policy would have done."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from pld_ray.policies import BasePolicy, ChunkCache
from pld_ray.rollout.episode import Columns
from pld_ray.rollout.vector_env import add_base_policy

AT_ONCE = 32
"""Episodes that the policy is asked about together."""


def with_base_actions(
    episodes: Sequence[Columns],
    policy: BasePolicy,
    task: str,
    actions: gym.spaces.Box,
    prefetch: bool = False,
) -> list[Columns]:
    """The episodes with `base_action`, and `observation.features` of a policy that has them.

    The policy goes along the recorded observations as it would have in the environment: it is asked
    where its chunk has run out, the final observation included.

    Args:
        episodes: each [L + 1, ...] with the observations that the policy reads.
        policy: the frozen base policy, inline or a pool's client.
        task: the instruction, in words.
        actions: bounds to which base actions are clipped, as the environment does.
        prefetch: as the runners', see `ChunkCache`.

    Returns:
        New columns; the others are those of `episodes`.
    """
    labelled: list[Columns] = []
    for start in range(0, len(episodes), AT_ONCE):
        labelled += _label(episodes[start : start + AT_ONCE], policy, task, actions, prefetch)
    return labelled


def _label(
    episodes: Sequence[Columns],
    policy: BasePolicy,
    task: str,
    actions: gym.spaces.Box,
    prefetch: bool,
) -> list[Columns]:
    """Episodes side by side, one frame of each at a time; those that are over drop out."""
    chunks = ChunkCache(policy, len(episodes), **({"prefetch": True} if prefetch else {}))
    chunks.reset(range(len(episodes)))
    lengths = np.array([len(episode["reward"]) for episode in episodes])
    made: list[dict[str, list[np.ndarray]]] = [{} for _ in episodes]
    for frame in range(lengths.max()):
        ids = np.flatnonzero(lengths > frame)
        seen = [key for key in episodes[0] if key in policy.input_features]
        batch = {key: np.stack([episodes[i][key][frame] for i in ids]) for key in seen}
        given = set(batch)
        add_base_policy(batch, chunks, [task] * len(ids), actions, ids.tolist())
        for key in batch.keys() - given:
            for row, i in enumerate(ids):
                made[i].setdefault(key, []).append(batch[key][row])
    return [
        {**episode, **{key: np.stack(rows) for key, rows in columns.items()}}
        for episode, columns in zip(episodes, made, strict=True)
    ]
