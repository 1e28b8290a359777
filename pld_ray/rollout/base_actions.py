"""Base actions and gripper labels for episodes that somebody else recorded."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from pld_ray.columns import GRIPPER_LABELS, Columns
from pld_ray.config import ResidualSACParams
from pld_ray.policies import BasePolicy, ChunkCache
from pld_ray.rollout.gripper_record import GripperRecord
from pld_ray.rollout.vector_env import add_base_policy

AT_ONCE = 32
"""Episodes that the policy is asked about together."""

NOISE_SEED = 2**31 - 1
"""Of a stochastic policy's noise, with an episode's number; evaluation's is (0, init state)."""


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
        policy: the frozen base policy, inline or a pool's client; a stochastic one draws its noise
            from the place of an episode among all of them.
        task: the instruction, in words.
        actions: bounds to which base actions are clipped, as the environment does.
        prefetch: as the runners', see `ChunkCache`.

    Returns:
        New columns; the others are those of `episodes`.
    """
    labelled: list[Columns] = []
    for start in range(0, len(episodes), AT_ONCE):
        together = episodes[start : start + AT_ONCE]
        noise = [(NOISE_SEED, start + i) for i in range(len(together))]
        labelled += _label(together, noise, policy, task, actions, prefetch)
    return labelled


def _label(
    episodes: Sequence[Columns],
    noise: Sequence[tuple[int, int]],
    policy: BasePolicy,
    task: str,
    actions: gym.spaces.Box,
    prefetch: bool,
) -> list[Columns]:
    """Episodes side by side, one frame of each at a time; those that are over drop out."""
    chunks = ChunkCache(policy, len(episodes), **({"prefetch": True} if prefetch else {}))
    chunks.reset(range(len(episodes)), noise)
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


def with_gripper_labels(
    episodes: Sequence[Columns], params: ResidualSACParams, actions: gym.spaces.Box
) -> list[Columns]:
    """The episodes with `discrete_action` and `discrete_penalty`, from the commands executed.

    Args:
        episodes: each [L + 1, ...] with `action` and `base_action`; labels that they have stay.
        params: gripper settings; without discrete grippers nothing is added.
        actions: bounds.
    """
    if params.gripper != "discrete":
        return list(episodes)
    return [
        episode if episode.keys() >= {*GRIPPER_LABELS} else _with_labels(episode, params, actions)
        for episode in episodes
    ]


def _with_labels(episode: Columns, params: ResidualSACParams, actions: gym.spaces.Box) -> Columns:
    record = GripperRecord(params, actions.low, actions.high, num_envs=1)
    decided, stepped = np.full(1, -1), np.ones(1, bool)
    rows = [
        record.columns(episode["action"][[row]], episode["base_action"][[row]], decided, stepped)
        for row in range(len(episode["reward"]) - 1)
    ]
    none = {name: np.zeros_like(value) for name, value in rows[0].items()}
    labels = {name: np.concatenate([row[name] for row in [*rows, none]]) for name in none}
    return {**episode, **{name: rows for name, rows in labels.items() if name not in episode}}
