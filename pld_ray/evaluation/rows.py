"""Evaluation rows of the runners as the episodes of `eval_info.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.suites import find_task
from pld_ray.config import EnvConfig
from pld_ray.evaluation.eval_info import EpisodeResult


def episode_results(
    rows: Sequence[dict[str, Any]], env: EnvConfig, films: Mapping[int, str] | None = None
) -> list[EpisodeResult]:
    """One result per row; the reward is 1 in the step of success, so its maximum is its sum.

    Args:
        rows: of `ResidualSAC.evaluate_...`.
        env: what was simulated.
        films: init state -> path of its video.
    """
    task_id = 0 if env.entry_point else find_task(env.suite, env.task).index
    return [
        EpisodeResult(
            success=row["success"],
            sum_reward=row["sum_reward"],
            max_reward=row["sum_reward"],
            length=row["length"],
            init_state_id=row["init_state_id"],
            task_group=env.suite,
            task_id=task_id,
            video_path=(films or {}).get(row["init_state_id"]),
        )
        for row in rows
    ]


def success_rate(rows: Sequence[dict[str, Any]]) -> float:
    """Share of successful episodes, in [0, 1]."""
    return sum(bool(row["success"]) for row in rows) / len(rows)
