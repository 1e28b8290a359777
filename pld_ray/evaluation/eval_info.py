"""`eval_info.json`: LeRobot's evaluation form, with base and residual policy side by side.

LeRobot's keys (lerobot 0.6, `lerobot_eval.eval_policy_all`) `per_task`, `per_group` and `overall`
describe base + residual, so that LeRobot's readers work unchanged. Ours stand beside them: `base`
(the same form for the base policy alone), `comparison` (rates, 95 % intervals and paired outcomes)
and `episodes` (a row for each episode of either policy).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from envs.suites import find_task
from pld_ray.config import EnvConfig
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.files.atomic import write_atomically
from pld_ray.runs.layout import checkpoint_checksum
from pld_ray.statistics import wilson_interval


def in_task(
    episodes: Sequence[EpisodeResult], env: EnvConfig, films: Mapping[int, str] | None = None
) -> list[EpisodeResult]:
    """The episodes with the suite, the task and the videos that they belong to.

    Args:
        episodes: of `ResidualSAC.evaluate_...`.
        env: what was simulated.
        films: init state -> path of its video.
    """
    task_id = 0 if env.environment_class else find_task(env.suite, env.task).index
    return [
        dataclasses.replace(
            episode,
            task_group=env.suite,
            task_id=task_id,
            video_path=(films or {}).get(episode.init_state_id),
        )
        for episode in episodes
    ]


def of_checkpoint(path: pathlib.Path) -> dict[str, Any]:
    """For `extra`: which checkpoint was played, by its place and by its manifest's checksum."""
    return {"checkpoint": str(path), "checksum": checkpoint_checksum(path)}


def write_eval_info(
    path: str | os.PathLike[str],
    episodes: Sequence[EpisodeResult],
    *,
    base: Sequence[EpisodeResult] | None = None,
    eval_s: float = 0.0,
    base_eval_s: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `eval_info.json`, whole or not at all.

    Args:
        path: the file.
        episodes: of base + residual.
        base: of the base policy alone, if it was evaluated.
        eval_s, base_eval_s: wall seconds that each evaluation took; None is not known, and
            leaves `eval_s` and `eval_ep_s` of the base policy out.
        extra: further top-level keys, e.g. `task`, `env_steps`, and those of `of_checkpoint`.

    Returns:
        What was written.

    Raises:
        ValueError: no episodes, a reward that is not finite, or a key of `extra` that is taken.
    """
    _check(episodes, "episodes")
    info = lerobot_form(episodes, eval_s)
    info["episodes"] = _rows("residual", episodes)
    info["comparison"] = {"residual": _rate(episodes)}
    if base is not None:
        _check(base, "base")
        info["base"] = lerobot_form(base, base_eval_s)
        info["episodes"] = _rows("base", base) + info["episodes"]
        info["comparison"] |= {"base": _rate(base), "paired": _paired(base, episodes)}
    taken = info.keys() & (extra or {}).keys()
    if taken:
        raise ValueError(f"write_eval_info: extra may not replace {', '.join(sorted(taken))}")
    info |= extra or {}
    write_atomically(path, json.dumps(info, indent=2, allow_nan=False) + "\n")
    return info


def lerobot_form(episodes: Sequence[EpisodeResult], eval_s: float | None) -> dict[str, Any]:
    """The episodes as `per_task`, `per_group` and `overall`, key for key as LeRobot has them but
    for the times that are not known."""
    by_task = _grouped(episodes, lambda e: (e.task_group, e.task_id))
    by_group = _grouped(episodes, lambda e: e.task_group)
    timing = (
        {} if eval_s is None else {"eval_s": eval_s, "eval_ep_s": eval_s / max(1, len(episodes))}
    )
    return {
        "per_task": [
            {"task_group": group, "task_id": task_id, "metrics": _task_metrics(rows)}
            for (group, task_id), rows in by_task.items()
        ],
        "per_group": {group: _averages(rows) | _videos(rows) for group, rows in by_group.items()},
        "overall": _averages(episodes) | timing | _videos(episodes),
    }


def read_eval_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """An `eval_info.json`, LeRobot's or ours.

    Raises:
        FileNotFoundError: it does not exist.
        ValueError: it is no such file.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such eval_info.json")
    try:
        info = json.loads(path.read_text())
        info["overall"]["pc_success"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no eval_info.json: overall.pc_success is missing") from error
    return info


def _task_metrics(rows: Sequence[EpisodeResult]) -> dict[str, list[Any]]:
    metrics: dict[str, list[Any]] = {
        "sum_rewards": [float(e.sum_reward) for e in rows],
        "max_rewards": [float(e.max_reward) for e in rows],
        "successes": [bool(e.success) for e in rows],
    }
    return metrics | _videos(rows)


def _averages(rows: Sequence[EpisodeResult]) -> dict[str, Any]:
    n = len(rows)
    return {
        "avg_sum_reward": sum(float(e.sum_reward) for e in rows) / n,
        "avg_max_reward": sum(float(e.max_reward) for e in rows) / n,
        "pc_success": 100.0 * sum(bool(e.success) for e in rows) / n,
        "n_episodes": n,
    }


def _videos(rows: Sequence[EpisodeResult]) -> dict[str, list[str]]:
    paths = [str(e.video_path) for e in rows if e.video_path is not None]
    return {"video_paths": paths, "predicted_video_paths": []}


def _rows(policy: str, episodes: Sequence[EpisodeResult]) -> list[dict[str, Any]]:
    rows = []
    for index, episode in enumerate(episodes):
        row = {"policy": policy, "episode_ix": index} | dataclasses.asdict(episode)
        row |= {
            "success": bool(episode.success),
            "sum_reward": float(episode.sum_reward),
            "max_reward": float(episode.max_reward),
            "length": int(episode.length),
            "init_state_id": int(episode.init_state_id),
            "task_id": int(episode.task_id),
            "seed": None if episode.seed is None else int(episode.seed),
            "video_path": None if episode.video_path is None else str(episode.video_path),
        }
        rows.append(row)
    return rows


def _rate(episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Success rate in per cent with its 95 % interval; mean length in steps of all episodes, and of
    the successes (None if there are none)."""
    n, successes = len(episodes), sum(bool(e.success) for e in episodes)
    low, high = wilson_interval(successes, n)
    return {
        "pc_success": 100.0 * successes / n,
        "pc_success_ci95": [100.0 * low, 100.0 * high],
        "n_episodes": n,
        "n_success": successes,
        "avg_length": sum(e.length for e in episodes) / n,
        "avg_success_length": success_length(episodes),
    }


def success_length(episodes: Iterable[EpisodeResult]) -> float | None:
    """Mean length of the successes in steps; None if there are none."""
    lengths = [episode.length for episode in episodes if episode.success]
    return sum(lengths) / len(lengths) if lengths else None


def _paired(
    base: Sequence[EpisodeResult], residual: Sequence[EpisodeResult]
) -> dict[str, int] | None:
    """Outcomes on initial states that both policies met exactly once; None if there are none."""

    def by_start(episodes: Sequence[EpisodeResult]) -> dict[Hashable, bool]:
        starts = _grouped(episodes, lambda e: (e.task_group, e.task_id, e.init_state_id, e.seed))
        return {k: bool(v[0].success) for k, v in starts.items() if len(v) == 1 and k[2] >= 0}

    before, after = by_start(base), by_start(residual)
    pairs = [(before[start], after[start]) for start in before if start in after]
    if not pairs:
        return None
    return {
        "n": len(pairs),
        "both": pairs.count((True, True)),
        "only_base": pairs.count((True, False)),
        "only_residual": pairs.count((False, True)),
        "neither": pairs.count((False, False)),
    }


def _grouped(
    episodes: Iterable[EpisodeResult], key: Callable[[EpisodeResult], Any]
) -> dict[Any, list[EpisodeResult]]:
    groups: dict[Any, list[EpisodeResult]] = {}
    for episode in episodes:
        groups.setdefault(key(episode), []).append(episode)
    return groups


def _check(episodes: Sequence[EpisodeResult], name: str) -> None:
    if not episodes:
        raise ValueError(f"write_eval_info: {name} is empty: there is nothing to report")
    for index, episode in enumerate(episodes):
        if not (math.isfinite(episode.sum_reward) and math.isfinite(episode.max_reward)):
            raise ValueError(f"write_eval_info: {name}[{index}] has a reward that is not finite")
