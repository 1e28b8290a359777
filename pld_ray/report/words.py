"""The report's words and numbers: what was run, the first figures, and how values are written."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

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
        shown.append(leading(summary, best))
        if base is not None:
            shown.append(("Base policy", percent(base), against_base(best, base)))
        several = best.point.seeds > 1
        remark = "reached by half of its runs" if several else "first evaluation there"
        if math.isinf(best.steps_to_threshold):
            remark = "not reached by half of its runs" if several else "not reached"
        heading = f"Steps to {percent(summary.threshold)}"
        shown.append((heading, reached(best, compact=True), remark))
    return shown + progress_tiles(summary)


def leading(summary: Summary, best: PointSummary) -> tuple[str, str, str]:
    """The highest figure, called the best only where the runs tell it from every other one."""
    runs = len(best.finals)
    sure = f"{runs} run{'s' * (runs != 1)}, no interval"
    if best.low is not None and best.high is not None:
        sure = f"95 % interval {100 * best.low:.0f}{DASH}{percent(best.high)}"
    figure = percent(best.iqm or 0.0)
    others = sum(point.iqm is not None for point in summary.points) - 1
    if not others:
        return ("Success", figure, sure)
    if not best.iqm:
        return ("Highest IQM", figure, f"no setting succeeded in any episode; {sure}")
    if not summary.rivals:
        return ("Best setting, IQM", figure, f"{best.point.label}; {sure}")
    return ("Highest IQM", figure, f"{best.point.label}; {sure}; {separation(summary)}")


def separation(summary: Summary) -> str:
    """How many settings the runs do not tell from the leading one; empty where they tell all."""
    rivals = summary.rivals
    if not rivals:
        return ""
    others = sum(point.iqm is not None for point in summary.points) - 1
    count = f"{len(rivals)} of {others} others" if others > 1 else "the other one"
    return f"not separable from {count}"


def against_base(best: PointSummary, base: float) -> str:
    """The leading setting beside the base policy."""
    points = round(100 * ((best.iqm or 0.0) - base))
    gain = f"{points:+d} points with the residual" if points else "the same with the residual"
    if best.low is None or best.high is None:
        return f"{gain}; no interval"
    return f"{gain}; not separable" if best.low <= base <= best.high else gain


def progress_tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """What was run, and for how long."""
    shown = []
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
    """Steps to the threshold; `> N`: not reached by the last evaluation; a dash: not known."""
    show = short_number if compact else whole
    if math.isfinite(point.steps_to_threshold):
        return show(point.steps_to_threshold)
    return f"> {show(point.missed_by)}" if point.missed_by is not None else DASH


def breakable(name: str) -> Markup:
    """A name that a line may end in only after what separates its words."""
    parts = re.split(r"(?<=[_/,=:-])(?=\w)|(?<=\.)(?=[A-Za-z])", name)
    return Markup("<wbr>").join(parts)  # escapes the parts


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
