"""Rows of one open episode, turned into columns when it ends; several episodes as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pld_ray.columns import SUCCESS, Columns

DTYPES = {
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "residual_scale": np.float32,
    "intervened": np.bool_,
}
"""Of the columns that are made of numbers; the others keep that of their arrays."""


class EpisodeBuilder:
    """Collects an episode frame by frame; `finish` adds the final frame and returns columns.

    An episode of L transitions has L + 1 rows: the last one holds the final observation and its
    base action, and zeros elsewhere. `terminated` / `truncated` and `success` stand on row L - 1.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        observation: Mapping[str, np.ndarray],
        env_index: int,
        action: np.ndarray,
        reward: float,
        terminated: bool,
        truncated: bool,
        residual_scale: float,
        intervened: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Store one transition; `observation` is the batch before it, base action included.

        `extra` holds further columns; every transition of an episode has the same ones. Arrays are
        kept, not copied.
        """
        row = {key: value[env_index] for key, value in observation.items()}
        row["action"] = action
        row["reward"] = reward
        row["terminated"] = terminated
        row["truncated"] = truncated
        row["residual_scale"] = residual_scale
        row["intervened"] = intervened
        if extra:
            row.update(extra)
        self._rows.append(row)

    def finish(
        self, observation: Mapping[str, np.ndarray], env_index: int, success: bool = False
    ) -> Columns:
        """Columns of the finished episode [L + 1, ...]; the builder is empty afterwards."""
        rows, self._rows = self._rows, []
        final = {key: value[env_index] for key, value in observation.items()}
        columns = {}
        for key, first in rows[0].items():
            values = [row[key] for row in rows]
            values.append(final[key] if key in final else np.zeros_like(first))
            is_number = key in DTYPES
            columns[key] = np.array(values, DTYPES[key]) if is_number else np.stack(values)
        columns[SUCCESS] = np.zeros(len(columns["reward"]), np.bool_)
        columns[SUCCESS][-2] = success  # on its last transition
        return columns


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


@dataclass(frozen=True)
class EpisodeSummary:
    """What became of one episode of a rollout."""

    success: bool
    length: int
    """Environment steps, probing included."""
    probe_steps: int
    """Of these, the first ones, which the base policy took before the residual."""
    sum_reward: float = 0.0
    """Undiscounted."""
    weights_updates: int = 0
    """Gradient updates behind the weights with which the episode began."""
    start: int = 0
    """Vector steps that its runner had made before it, resets included."""
    env_index: int = 0
    intervention_count: int = 0
    """Times that a person took over."""
    intervention_steps: int = 0
    """Steps in which a person acted."""
    true_success: bool | None = None
    """Of the environment, where a reward classifier has judged `success`."""

    @property
    def intervened(self) -> bool:
        """A person acted in it: its success is assisted, not autonomous."""
        return self.intervention_steps > 0

    @property
    def residual_acted(self) -> bool:
        """An episode that ended while probing is the base policy's own."""
        return self.length > self.probe_steps
