"""What a reader looks for first: what was run, the leading setting, how sure it is."""

from __future__ import annotations

import datetime
import math

from pld_ray.charts.numbers import percent, short_number
from pld_ray.report.formats import DASH, duration, whole
from pld_ray.report.summary import PointSummary, RunSummary, Summary

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
    return [(name, text) for name, text in rows if text]


def tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """Heading, value and remark of each."""
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
    """The highest success, called the best only where the runs tell it from every other one."""
    seeds, runs = len(best.finals), sum(run.final is not None for run in best.runs)
    repeated = f" of {seeds} seed{'s' * (seeds != 1)}" if seeds < runs else ""
    sure = f"{runs} run{'s' * (runs != 1)}{repeated}, no interval"
    if best.low is not None and best.high is not None:
        sure = f"95 % interval {100 * best.low:.0f}{DASH}{percent(best.high)}"
    rate = percent(best.iqm or 0.0)
    others = sum(point.iqm is not None for point in summary.points) - 1
    if not others:
        return ("Success", rate, sure)
    if not best.iqm:
        return ("Highest IQM", rate, f"no setting succeeded in any episode; {sure}")
    if not summary.rivals:
        return ("Best setting, IQM", rate, f"{best.point.label}; {sure}")
    return ("Highest IQM", rate, f"{best.point.label}; {sure}; {separation(summary)}")


def separation(summary: Summary) -> str:
    """How many settings the runs do not tell from the leading one; empty where they tell all."""
    others = sum(point.iqm is not None for point in summary.points) - 1
    return not_separable(len(summary.rivals), others)


def not_separable(rivals: int, others: int) -> str:
    """From how many of the others the leading setting is not told; empty for none."""
    if not rivals:
        return ""
    count = f"{rivals} of {others} others" if others > 1 else "the other one"
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
