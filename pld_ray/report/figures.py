"""The report's charts: which figures go into which picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from pld_ray.report import charts, panels
from pld_ray.report.importance import encode
from pld_ray.report.points import short_names
from pld_ray.report.runs import RESIDUAL_SCALE
from pld_ray.report.series import Series
from pld_ray.report.summary import PointSummary, Summary
from pld_ray.report.svg import percent, short_number

HIGHLIGHTED = 5
"""Points in colour when the page opens."""
MAX_ROWS = 24
"""Rows of a dot chart; the table has them all."""
MAX_VALUES = 8
"""Values of a parameter that get a place of their own."""
MAX_SCHEDULE_POINTS = 200
LONG_LABEL = 60
"""Characters from which names in a chart are cut, so that they carry their rank."""


@dataclass(frozen=True)
class PointView:
    """A point as the page shows it."""

    index: int
    label: str
    muted: bool
    summary: PointSummary

    @property
    def css(self) -> str:
        """Colour and state."""
        return charts.series_class(self.index, self.muted)

    @property
    def ranked(self) -> str:
        """Name in a chart; a long one begins with the rank in the table."""
        return self.label if len(self.label) < LONG_LABEL else f"{self.index + 1}: {self.label}"


def point_views(summary: Summary) -> list[PointView]:
    """Points in rank order; the first few are highlighted."""
    return [
        PointView(index, point.point.label, index >= HIGHLIGHTED, point)
        for index, point in enumerate(summary.points)
    ]


def curves_chart(summary: Summary, views: Sequence[PointView]) -> Markup | None:
    """Success over environment steps, a line per point."""
    lines = []
    for view in views:
        curve = view.summary.curve
        if curve is None:
            continue
        few = curve.low is None or curve.high is None
        lines.append(
            charts.Line(
                view.index,
                view.label,
                curve.steps.tolist(),
                curve.mean.tolist(),
                view.muted,
                curve.complete,
                None if curve.low is None else curve.low.tolist(),
                None if curve.high is None else curve.high.tolist(),
                [
                    (float(step), float(value))
                    for series in curve.runs
                    for step, value in zip(series.steps, series.values, strict=True)
                ]
                if few and len(curve.runs) > 1
                else (),
            )
        )
    if not lines:
        return None
    marks = [charts.Mark(summary.threshold, percent(summary.threshold), "threshold")]
    base = summary.validation_base
    if base is not None:
        marks.append(charts.Mark(base, f"base\n{percent(base)}", "base"))
    return charts.line_chart(lines, "success rate over environment steps", marks=marks)


def finals_chart(summary: Summary, views: Sequence[PointView]) -> Markup | None:
    """Final success of every point, with its runs and interval."""
    rows = [
        charts.DotRow(
            view.index,
            view.ranked,
            [final for final, complete in results(summary, view.summary) if complete],
            [final for final, complete in results(summary, view.summary) if not complete],
            view.summary.iqm,
            view.summary.low,
            view.summary.high,
            muted=view.muted,
        )
        for view in views
        if view.summary.iqm is not None
    ][:MAX_ROWS]
    if not rows:
        return None
    base = summary.base
    return charts.dot_chart(
        rows,
        "final success of each setting",
        x_name="final success",
        x_range=(0.0, 1.0),
        show=percent,
        line_at=None if base is None else (base, f"base policy {percent(base)}"),
    )


def results(summary: Summary, point: PointSummary) -> list[panels.Result]:
    """Final success of each run, and whether the run got to its end: where some runs were
    evaluated on the held states, the others did not."""
    mixed = summary.final_on == "mixed"
    return [(run.final, run.held or not mixed) for run in point.runs if run.final is not None]


def efficiency_chart(summary: Summary, views: Sequence[PointView]) -> Markup | None:
    """Steps to the threshold, a dot per run."""
    rows = []
    for view in views:
        reached = [run.steps_to_threshold for run in view.summary.runs]
        missed = [run.missed_by for run in view.summary.runs if run.missed_by is not None]
        if not missed and not np.isfinite(reached).any():
            continue
        rows.append(
            charts.DotRow(
                view.index,
                view.ranked,
                reached,
                centre=view.summary.steps_to_threshold,
                censored=[float(steps) for steps in missed],
                muted=view.muted,
            )
        )
    if not rows:
        return None
    return charts.dot_chart(
        rows[:MAX_ROWS],
        f"environment steps to {percent(summary.threshold)} success",
        x_name=f"environment steps to {percent(summary.threshold)}",
        x_range=(0, max(run.run.env_steps for run in summary.runs) or 1.0),
        show=short_number,
    )


def effect_panels(summary: Summary) -> list[Markup]:
    """A panel for each swept parameter: by value where there are few, else a scatter of numbers."""
    short = short_names(summary.swept)
    drawn = []
    for name in summary.swept:
        runs = [
            (point.point.values[name], result)
            for point in summary.points
            for result in results(summary, point)
            if name in point.point.values
        ]
        if not runs:
            continue
        numbers, ordered = encode([value for value, _ in runs])
        groups: dict[float, list[panels.Result]] = {}
        words: dict[float, str] = {}
        for number, (value, final) in zip(numbers.tolist(), runs, strict=True):
            groups.setdefault(number, []).append(final)
            words[number] = value
        if 2 <= len(groups) <= MAX_VALUES:
            by_value = [(words[number], groups[number]) for number in sorted(groups)]
            drawn.append(panels.effect_panel(short[name], by_value, summary.base))
        elif ordered and len(groups) > 1:
            finals = [final for _, final in runs]
            panel = panels.scatter_panel(short[name], numbers.tolist(), finals, summary.base)
            drawn.append(panel)
    return drawn


@dataclass(frozen=True)
class Schedule:
    """One course of the residual scale and the settings that had it."""

    css: str
    words: str
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
        muted = index >= charts.COLOURS
        lines += [charts.Line(index, "; ".join(labels), *_thinned(s), muted) for s in series[key]]
        first, last = {float(s.values[0]) for s in series[key]}, {s.last for s in series[key]}
        constant = all(np.ptp(s.values) == 0 for s in series[key])
        words = _span(last) if constant else f"{_span(first)} to {_span(last)}"
        shown.append(Schedule(charts.series_class(index, muted), words, labels))
    if not any(np.ptp(line.y) > 0 for line in lines):
        return Schedules(shown, None)
    chart = charts.line_chart(
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
