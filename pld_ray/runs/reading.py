"""What a run's folder says about the run, whatever release wrote it and whatever is damaged."""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any

from pld_ray.runs.layout import (
    CHECKPOINTS,
    METRICS_FILE,
    PAST_SUMMARY_FILE,
    PROGRESS_FILE,
    SUMMARY_FILE,
    read_json,
)
from pld_ray.runs.status import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Status,
    is_held,
    one_line,
    read_status,
)

NEVER_STARTED = "never started"
OLD_FAILURE_FILE = "failure.txt"
"""In which trials of releases without `status.json` said why they failed."""


@dataclass
class Metrics:
    """What a listing needs of `metrics.jsonl`."""

    env_steps: int = 0
    base: float | None = None
    success: float | None = None
    best: float | None = None
    least: float | None = None
    validation_base: float | None = None
    held: float | None = None
    """None, too, where the run has gone on since."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest value of every metric."""


def run_state(folder: pathlib.Path, summary: dict[str, Any], metrics: Metrics) -> tuple[str, str]:
    """State of a run, and why it failed, or waits."""
    status = read_status(folder) or old_status(folder, summary)
    nothing = metrics.env_steps == 0 and not latest_checkpoints(folder)
    if status.state == INTERRUPTED and nothing:
        return NEVER_STARTED, ""
    return status.state, status.reason if status.state in (FAILED, RUNNING) else ""


def old_status(folder: pathlib.Path, summary: dict[str, Any]) -> Status:
    """The state of a run whose release wrote no `status.json`."""
    if is_held(folder):
        return Status(RUNNING)
    if "residual_success" in summary:
        return Status(FINISHED)
    note = folder / OLD_FAILURE_FILE
    if note.is_file():
        return Status(FAILED, one_line(note.read_text(errors="replace")) or "no reason given")
    return Status(INTERRUPTED)


def read_metrics(path: pathlib.Path, everything: bool = False) -> Metrics:
    """Read a history; torn and foreign lines are left out.

    Args:
        everything: fill `last`, which means to parse each line.
    """
    metrics = Metrics()
    if not path.is_file():
        return metrics
    lines, held_at = path.read_bytes().split(b"\n"), 0
    for number, line in enumerate(lines):
        if not (everything or b'"eval/' in line or number >= len(lines) - 2):
            continue
        try:
            row = json.loads(line)
            metrics.env_steps = max(metrics.env_steps, int(row["env_steps"]))
            row = {key: value for key, value in row.items() if is_metric(value)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            continue
        metrics.last |= {key: value for key, value in row.items() if value is not None}
        success = row.get("eval/residual_success", row.get("eval/success"))
        if success is not None:
            metrics.success = success
        begins = "eval/success" in row and row.get("updates") == 0  # of what fine-tuning began from
        if success is not None and not begins:
            metrics.best = success if metrics.best is None else max(metrics.best, success)
            metrics.least = success if metrics.least is None else min(metrics.least, success)
        same = row.get("eval/validation_base_success", metrics.validation_base)
        metrics.validation_base = same
        metrics.base = row.get("eval/held_base_success", row.get("eval/base_success", metrics.base))
        if "eval/held_residual_success" in row:
            metrics.held, held_at = row["eval/held_residual_success"], int(row["env_steps"])
    if metrics.env_steps > held_at:
        metrics.held = None
    return metrics


def wall_before(folder: pathlib.Path) -> float:
    """Seconds that a run has taken when it goes on; of one that was killed, those it trained."""
    trained = read_metrics(folder / METRICS_FILE, everything=True).last.get("time/wall_s", 0.0)
    ends = (read_json(folder / name) for name in (SUMMARY_FILE, PAST_SUMMARY_FILE))
    totals = (end.get("total_wall_s") for end in ends)
    return max(trained, *(float(s) if isinstance(s, int | float) else 0.0 for s in totals))


def latest_checkpoints(folder: pathlib.Path) -> list[tuple[str, int]]:
    """Name and environment steps of each whole checkpoint, the newest first."""
    found = []
    for file in (folder / CHECKPOINTS).glob(f"*/{PROGRESS_FILE}"):
        steps = read_json(file).get("env_steps")
        if isinstance(steps, int) and not file.parent.name.startswith("."):
            found.append((file.parent.name, steps))
    return sorted(found, key=lambda item: (-item[1], item[0]))


def is_metric(value: Any) -> bool:
    """Whether a value can be one of a metric: a finite number, or None."""
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )
