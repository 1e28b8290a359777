"""What a sweep came to: a row per trial, and their summary."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from ray import tune

from pld_ray.runs.layout import CONFIG_FILE, SUMMARY_FILE, TRIALS, trial_folder
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FAILED, FINISHED, INTERRUPTED, STOPPED, read_status
from pld_ray.sweep.config import label
from pld_ray.sweep.ended import ended_figures, known_points

ENDED = (FINISHED, STOPPED, FAILED)

Row = dict[str, Any]


def trial_rows(sweep_dir: pathlib.Path, results: Iterable[tune.Result]) -> list[Row]:
    """Every trial that was begun, by name: as Tune has it, else as its folder does, since a
    resumed sweep that is stopped soon has not come to all of them again."""
    rows = {row["trial"]: row for row in (trial_row(sweep_dir, result) for result in results)}
    for name, point in known_points(sweep_dir / TRIALS).items():
        if name not in rows:
            folder = trial_folder(sweep_dir, name)
            figures = ended_figures(folder)
            state = "open" if figures is None else _how_it_ended(folder)
            rows[name] = _row(folder, point, figures or {}, state, "")
    return [rows[name] for name in sorted(rows)]


def trial_row(sweep_dir: pathlib.Path, result: tune.Result) -> Row:
    """One trial: what was tried, how it ended, and its last figures (rates in [0, 1])."""
    folder = trial_folder(sweep_dir, pathlib.Path(result.path).name)
    point = dict((result.config or {}).get("point", {}))
    point.pop("id", None)
    state = state_of(folder, result)
    failure = failure_of(folder, result.error) if state == FAILED else ""
    return _row(folder, point, result.metrics or {}, state, failure)


def _row(
    folder: pathlib.Path, point: dict[str, Any], figures: dict[str, Any], state: str, failure: str
) -> Row:
    known = (folder / CONFIG_FILE).is_file()
    return {
        "trial": folder.name,
        "state": state,
        "point": label(point),
        "seed": RunDir(folder).load_config().seed if known else point.get("seed"),
        "best_success": figures.get("best_success"),
        "held_success": figures.get("held_success"),
        "base_success": figures.get("base_success"),
        "env_steps": figures.get("env_steps"),
        "wall_s": figures.get("wall_s"),
        "failure": failure,
        "folder": str(folder),
    }


def state_of(folder: pathlib.Path, result: tune.Result) -> str:
    """`finished`, `stopped early` (by the scheduler or a stop rule), `failed` or `open`."""
    if result.error is not None:
        return FAILED
    if not (result.metrics or {}).get("done") and ended_figures(folder) is None:
        return "open"
    return _how_it_ended(folder)


def _how_it_ended(folder: pathlib.Path) -> str:
    return FINISHED if (folder / SUMMARY_FILE).is_file() else STOPPED


def failure_of(folder: pathlib.Path, error: Exception | None) -> str:
    """Why a trial failed, in one line: its own words, else Ray's."""
    status = read_status(folder)
    if status is not None and status.state == FAILED:
        return status.reason
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]


def summarize(rows: Sequence[Row], num_trials: int, over: bool = False) -> dict[str, Any]:
    """Counts and the best trial.

    Args:
        rows: see `trial_rows`.
        num_trials: of the sweep.
        over: its time was up. Else it is `interrupted` while trials are open or were not begun.
    """
    counts = {state: sum(row["state"] == state for row in rows) for state in ENDED}
    left = max(0, num_trials - sum(counts.values()))
    return {
        "state": INTERRUPTED if left and not over else FINISHED,
        "num_trials": num_trials,
        **{f"num_{state.replace(' ', '_')}": count for state, count in counts.items()},
        "num_open": left,
        "best": max(rows, key=lambda row: row["best_success"] or -1.0, default=None),
    }


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as a table with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["trial"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
