"""Courses of the residual scale; settings with the same course share a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from pld_ray.charts.lines import Line, line_chart
from pld_ray.charts.svg import COLOURS, series_class
from pld_ray.report.figures import PointView
from pld_ray.report.runs import RESIDUAL_SCALE
from pld_ray.report.series import Series

MAX_SCHEDULE_POINTS = 200


@dataclass(frozen=True)
class Schedule:
    """One course of the residual scale and the settings that had it."""

    css: str
    span: str
    """Where it led."""
    labels: list[str]


@dataclass(frozen=True)
class Schedules:
    """Every course, and a chart where one of them is not constant."""

    courses: list[Schedule]
    chart: Markup | None


def schedules(views: Sequence[PointView]) -> Schedules:
    """The residual scale over environment steps; settings with the same course are one line."""
    courses: dict[frozenset[bytes], list[str]] = {}
    series: dict[frozenset[bytes], list[Series]] = {}
    for view in views:
        found = {_bytes(s): s for s in _longest_courses(view)}
        if found:
            courses.setdefault(frozenset(found), []).append(view.label)
            series[frozenset(found)] = list(found.values())
    lines, shown = [], []
    for index, (key, labels) in enumerate(courses.items()):
        muted = index >= COLOURS
        lines += [Line(index, "; ".join(labels), *_thinned(s), muted) for s in series[key]]
        first, last = {float(s.values[0]) for s in series[key]}, {s.last for s in series[key]}
        constant = all(np.ptp(s.values) == 0 for s in series[key])
        span = _span(last) if constant else f"{_span(first)} to {_span(last)}"
        shown.append(Schedule(series_class(index, muted), span, labels))
    if not any(np.ptp(line.y) > 0 for line in lines):
        return Schedules(shown, None)
    chart = line_chart(
        lines,
        "residual scale over environment steps",
        y_range=(0.0, 1.05 * max(value for line in lines for value in line.y)),
        show_y=lambda value: f"{value:.2g}",
        height=(240, 220),
        scope="schedule",
    )
    return Schedules(shown, chart)


def _longest_courses(view: PointView) -> list[Series]:
    """A point's schedules, without those of runs that ended early on the same course."""
    found = [
        run.run.metrics[RESIDUAL_SCALE]
        for run in view.summary.runs
        if RESIDUAL_SCALE in run.run.metrics
    ]
    found.sort(key=len, reverse=True)
    kept: list[Series] = []
    for s in found:
        if not any(_is_start_of(s, longer) for longer in kept):
            kept.append(s)
    return kept


def _bytes(series: Series) -> bytes:
    """Equal for equal courses; a constant is one however long it was logged."""
    if np.ptp(series.values) == 0:
        return series.values[:1].tobytes()
    return series.steps.tobytes() + series.values.tobytes()


def _is_start_of(series: Series, other: Series) -> bool:
    n = len(series)
    return bool(
        np.array_equal(series.steps, other.steps[:n])
        and np.array_equal(series.values, other.values[:n])
    )


def _span(values: set[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g}…{high:.3g}"


def _thinned(series: Series) -> tuple[list[float], list[float]]:
    """Only the points at which the line bends, and at most `MAX_SCHEDULE_POINTS`."""
    steps, values = series.steps.astype(float), series.values
    if len(steps) > 2:
        slope = np.diff(values) / np.diff(steps)
        bend = np.abs(np.diff(slope)) > 1e-9 * max(1.0, float(np.abs(slope).max()))
        keep = np.concatenate([[True], bend, [True]])
        steps, values = steps[keep], values[keep]
    stride = -(-len(steps) // MAX_SCHEDULE_POINTS)
    picked = np.unique(np.append(np.arange(0, len(steps), stride), len(steps) - 1))
    return steps[picked].tolist(), values[picked].tolist()
