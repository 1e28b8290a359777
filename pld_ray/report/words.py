"""The report's words and numbers: what was run, the first figures, and how values are written."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

import numpy as np

from pld_ray.report.summary import PointSummary, RunSummary, Summary
from pld_ray.report.svg import percent, short_number

DASH = "\N{EN DASH}"
STATES = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "interrupted",
    "RUNNING": "running",
    "SCHEDULED": "waiting",
}


def facts(summary: Summary) -> list[tuple[str, str]]:
    """What was run: task, settings, code, time."""
    runs = [run.run for run in summary.runs]
    tasks = sorted({run.task.replace("_", " ") for run in runs} - {""})
    seeds = sorted({point.point.seeds for point in summary.points})
    each = f"{seeds[0]}" if len(seeds[:2]) == 1 else f"{seeds[0]}-{seeds[-1]}" if seeds else "0"
    started = [run.start_ms for run in runs if run.start_ms]
    one = {
        "suite": {run.tags.get("suite", "") for run in runs},
        "preset": {run.tags.get("preset", "") for run in runs},
        "base policy": {run.tags.get("base_policy", "")[:12] for run in runs},
        "commit": {run.tags.get("mlflow.source.git.commit", "")[:10] for run in runs},
        "pld-ray": {run.tags.get("pld_ray.version", "") for run in runs},
        "cluster": {run.tags.get("cluster", "") for run in runs},
    }
    rows = [("task", ", ".join(tasks[:3]) + (" and more" if len(tasks) > 3 else ""))]
    if len(runs) > 1:
        count = len(summary.points)
        rows.append(
            (
                "runs",
                f"{len(runs)}: {count} setting{'s' * (count != 1)}, {each} "
                f"run{'s' * (each != '1')} of each",
            )
        )
    rows += [(name, ", ".join(sorted(values - {""}))) for name, values in one.items()]
    if started:
        first = datetime.datetime.fromtimestamp(min(started) / 1000, datetime.UTC)
        rows.append(("started", f"{first:%Y-%m-%d %H:%M} UTC"))
    return [(name, words) for name, words in rows if words]


def tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """The few figures that a reader looks for first: heading, figure, remark."""
    best, base = summary.best, summary.base
    shown = []
    if best is not None and best.iqm is not None:
        if best.low is not None and best.high is not None:
            sure = f"95 % interval {100 * best.low:.0f}{DASH}{percent(best.high)}"
        else:
            sure = f"{len(best.finals)} run{'s' * (len(best.finals) != 1)}, no interval"
        several = len(summary.points) > 1
        heading = "Best setting, IQM" if several else "Success"
        remark = f"{best.point.label}; {sure}" if several else sure
        shown.append((heading, percent(best.iqm), remark))
        if base is not None:
            gain = 100 * (best.iqm - base)
            shown.append(("Base policy", percent(base), f"{gain:+.0f} points with the residual"))
        several = best.point.seeds > 1
        remark = "reached by half of its runs" if several else "first evaluation there"
        if math.isinf(best.steps_to_threshold):
            remark = "not reached by half of its runs" if several else "not reached"
        heading = f"Steps to {percent(summary.threshold)}"
        shown.append((heading, reached(best, compact=True), remark))
    states: dict[str, int] = {}
    for run in summary.runs:
        state = STATES.get(run.run.status, run.run.status.lower())
        states[state] = states.get(state, 0) + 1
    finished = states.pop("finished", 0)
    rest = ", ".join(f"{n} {state}" for state, n in states.items())
    shown.append(("Runs finished", f"{finished} of {len(summary.runs)}", rest or "none failed"))
    seconds = sum(run.wall_s or 0 for run in summary.runs)
    if seconds:
        steps = sum(run.run.env_steps for run in summary.runs)
        time = f"{seconds / 3600:.1f} h" if seconds >= 36_000 else duration(seconds)
        shown.append(("Training time", time, f"{short_number(steps)} steps in all"))
    return shown


def reached(point: PointSummary | RunSummary, compact: bool = False) -> str:
    """Steps to the threshold; `> N` where it was not reached by the last evaluation."""
    show = short_number if compact else whole
    if math.isfinite(point.steps_to_threshold):
        return show(point.steps_to_threshold)
    return f"> {show(point.evaluated_to)}" if point.evaluated_to is not None else DASH


def percent1(value: float | None) -> str:
    """0.8333 -> `83.3`; a dash where nothing is known."""
    return DASH if value is None else f"{100 * value:.1f}"


def whole(value: float | None) -> str:
    """36000 -> `36,000`."""
    return DASH if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Three significant digits."""
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as `1 h 05 min`, `12 min` or `40 s`."""
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"


def median(values: Sequence[float | None]) -> float | None:
    """Of the values that are known."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
