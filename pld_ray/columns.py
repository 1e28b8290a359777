"""Names of the columns that travel from an environment's step to a gradient, and whole episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Columns = dict[str, np.ndarray]
"""Column -> rows [n, ...]; an episode of L transitions has L + 1 rows, the last its final frame."""

BASE_ACTION = "base_action"
"""What the frozen base policy would do, [A] float32; part of every observation."""
POLICY_FEATURES = "observation.features"
"""What the base policy saw when it made the chunk that is being played."""
SUCCESS = "success"
"""bool: this step reached the goal; in a rollout's episodes only the last one can."""
START = "start"
"""Optional, bool: rows that may start a training window; without it every transition may."""
INTERVENED = "intervened"
"""bool: a person's action was executed, and is what `action` holds."""
SUCCEEDED = "succeeded"
"""bool: the episode of this row reached the goal, at this step or later; in a replay alone."""
TASK_INDEX = "task_index"
"""The task's number, where an environment tells it: what a task embedding looks up."""
VECTOR_KEYS = ("observation.state", "observation.environment_state", POLICY_FEATURES)
"""Observations that are concatenated into the networks' input vector, in this order."""
IMAGE_PREFIX = "observation.images."
FEATURE_PREFIX = "observation.features."
"""Of a camera's images, and of what a frozen vision encoder makes of them."""


def concatenate_episodes(episodes: Sequence[Columns]) -> tuple[Columns, list[int]]:
    """One set of columns and the number of transitions of each episode."""
    if not episodes:
        return {}, []
    columns = {key: np.concatenate([e[key] for e in episodes]) for key in episodes[0]}
    return columns, [len(e["reward"]) - 1 for e in episodes]


def split_episodes(columns: Columns, episode_lengths: Sequence[int]) -> list[Columns]:
    """The inverse of `concatenate_episodes`."""
    ends = np.cumsum([n + 1 for n in episode_lengths])
    return [
        {key: value[end - n - 1 : end] for key, value in columns.items()}
        for end, n in zip(ends, episode_lengths, strict=True)
    ]
