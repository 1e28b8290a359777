"""Rows of one open episode, turned into columns when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]


class EpisodeBuilder:
    """Collects an episode frame by frame; `finish` adds the final frame and returns columns.

    An episode of L transitions has L + 1 rows: the last one holds the final observation and its
    base action, and zeros elsewhere. `terminated` / `truncated` stand on row L - 1.
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

        `extra` holds further columns; every transition of an episode has the same ones.
        """
        self._rows.append(
            {
                **{key: value[env_index] for key, value in observation.items()},
                "action": action,
                "reward": np.float32(reward),
                "terminated": np.bool_(terminated),
                "truncated": np.bool_(truncated),
                "residual_scale": np.float32(residual_scale),
                "intervened": np.bool_(intervened),
                **(extra or {}),
            }
        )

    def finish(self, observation: Mapping[str, np.ndarray], env_index: int) -> Columns:
        """Columns of the finished episode [L + 1, ...]; the builder is empty afterwards."""
        final = {key: value[env_index] for key, value in observation.items()}
        last = self._rows[-1]
        for key, value in last.items():
            if key not in final:
                final[key] = np.zeros_like(value)
        rows = [*self._rows, final]
        self._rows = []
        return {key: np.stack([row[key] for row in rows]) for key in last}


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
