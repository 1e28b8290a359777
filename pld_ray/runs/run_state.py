"""What a run's folder says about the run: metrics, checkpoints, and whether it lives or failed."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pathlib
import re
import time
from dataclasses import dataclass, field
from typing import Any

from pld_ray.runs.run_lock import LOCK_FILE, lock_owner

PROGRESS_FILE = "residual_sac.json"
"""In a checkpoint that is whole."""
LOCK_FILES = (LOCK_FILE, "mlflow_spool/lock")
"""Held by the process that writes a run's folder."""
FAILURE_FILE, FAILURE_LINE = "failure.txt", "the run failed"
RECENT_S = 120.0
"""A run whose lock says nothing is running if it wrote its metrics within so many seconds."""
TAIL_BYTES = 65_536


@dataclass
class Metrics:
    """What a listing needs of `metrics.jsonl`."""

    env_steps: int = 0
    base: float | None = None
    success: float | None = None
    best: float | None = None
    held: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    """The newest value of every metric."""


def run_state(folder: pathlib.Path, summary: dict[str, Any], metrics: Metrics) -> tuple[str, str]:
    """State of a run, and why it failed."""
    locks = [is_held(lock) for name in LOCK_FILES if (lock := folder / name).is_file()]
    unknown = not locks or None in locks
    file = folder / "metrics.jsonl"
    fresh = file.is_file() and time.time() - file.stat().st_mtime < RECENT_S
    if True in locks or (unknown and fresh and not summary):
        return "running", ""
    if "residual_success" in summary:
        return "finished", ""
    reason = failure(folder)
    if reason:
        return "failed", reason
    if metrics.env_steps == 0 and not latest_checkpoints(folder):
        return "never started", ""
    return "interrupted", ""


def is_held(lock: pathlib.Path) -> bool | None:
    """Whether a process holds a lock file; None where a free one names another host, whose locks
    cannot be seen through every file system.

    Held means by the system's lock; `run.lock` by the process that it names.
    """
    if lock.name == LOCK_FILE:
        return lock_owner(lock) is not None
    try:
        with lock.open("rb") as file:
            words = file.read(200).decode(errors="replace")
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        return False
    pid = re.search(r"\d+", words)
    if pid is None:
        return False
    return None if os.uname().nodename not in words else False


def failure(folder: pathlib.Path) -> str:
    """Why the last life of a run failed; an empty text if it did not.

    The log counts only from its last start on: a run that failed and was resumed has not failed.
    """
    note = folder / FAILURE_FILE
    if note.is_file():
        return note.read_text(errors="replace").strip().split("\n")[0][:500] or "no reason given"
    log = folder / "train.log"
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        tail = file.read().decode(errors="replace")
    _, found, after = tail.rpartition(FAILURE_LINE)
    if not found or "env_steps=" in after:
        return ""
    lines = [
        line for line in after.strip().split("\n") if re.match(r"[\w.]+(Error|Exception)\b", line)
    ]
    return lines[-1][:500] if lines else "see train.log"


def read_metrics(path: pathlib.Path, everything: bool = False) -> Metrics:
    """Read a history; torn and foreign lines are left out.

    Args:
        everything: fill `last`, which means to parse each line.
    """
    metrics = Metrics()
    if not path.is_file():
        return metrics
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not (everything or b'"eval/' in line or number >= len(lines) - 2):
            continue
        try:
            row = json.loads(line)
            metrics.env_steps = max(metrics.env_steps, int(row["env_steps"]))
            row = {key: value for key, value in row.items() if is_figure(value)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            continue
        metrics.last |= {key: value for key, value in row.items() if value is not None}
        success = row.get("eval/residual_success")
        if success is not None:
            metrics.success = success
            metrics.best = success if metrics.best is None else max(metrics.best, success)
        metrics.base = row.get("eval/held_base_success", row.get("eval/base_success", metrics.base))
        metrics.held = row.get("eval/held_residual_success", metrics.held)
    return metrics


def latest_checkpoints(folder: pathlib.Path) -> list[tuple[str, int]]:
    """Name and environment steps of each whole checkpoint, the newest first."""
    found = []
    for file in (folder / "checkpoints").glob(f"*/{PROGRESS_FILE}"):
        steps = read_json(file).get("env_steps")
        if isinstance(steps, int) and not file.parent.name.startswith("."):
            found.append((file.parent.name, steps))
    return sorted(found, key=lambda item: (-item[1], item[0]))


def is_figure(value: Any) -> bool:
    """Whether a value can be one of a metric: a finite number, or None."""
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
