"""The report's charts: which results go into which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from pld_ray.charts.dots import DotRow, dot_chart
from pld_ray.charts.lines import Line, Mark, line_chart
from pld_ray.charts.numbers import percent, short_number
from pld_ray.charts.panels import Result, effect_panel, scatter_panel
from pld_ray.charts.svg import series_class
from pld_ray.report.importance import encode
from pld_ray.report.points import short_names
from pld_ray.report.summary import Curve, PointSummary, Summary

HIGHLIGHTED = 5
"""Points in colour when the page opens."""
MAX_ROWS = 24
"""Rows of a dot chart; the table has them all."""
MAX_VALUES = 8
"""Values of a parameter that get a place of their own."""
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
        return series_class(self.index, self.muted)

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
    found = [(view, view.summary.curve) for view in views]
    lines = [course(view, curve, single_results(curve)) for view, curve in found if curve]
    if not lines:
        return None
    marks = [Mark(summary.threshold, percent(summary.threshold), "threshold")]
    if (base := summary.base_of_curves) is not None:
        marks.append(Mark(base[0], f"base\n{percent(base[0])}", "base"))
    return line_chart(lines, "success rate over environment steps", marks=marks)


def person_chart(views: Sequence[PointView]) -> Markup | None:
    """Share of the training steps that a person acted, over environment steps."""
    found = [(view, view.summary.person) for view in views]
    lines = [course(view, curve) for view, curve in found if curve]
    if not lines:
        return None
    return line_chart(lines, "steps by a person over environment steps", height=(260, 220))


def course(view: PointView, curve: Curve, dots: Sequence[tuple[float, float]] = ()) -> Line:
    """A point's line, with its interval or these dots."""
    return Line(
        view.index,
        view.label,
        curve.steps.tolist(),
        curve.mean.tolist(),
        view.muted,
        curve.complete,
        None if curve.low is None else curve.low.tolist(),
        None if curve.high is None else curve.high.tolist(),
        dots,
    )


def single_results(curve: Curve) -> list[tuple[float, float]]:
    """Of each run, where several runs are too few for an interval."""
    if len(curve.runs) == 1 or curve.low is not None:
        return []
    return [
        (float(step), float(value))
        for series in curve.runs
        for step, value in zip(series.steps, series.values, strict=True)
    ]


def finals_chart(summary: Summary, views: Sequence[PointView]) -> Markup | None:
    """Final success of every point, with its runs and interval."""
    rows = [
        DotRow(
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
    return dot_chart(
        rows,
        "final success of each setting",
        x_name="final success",
        x_range=(0.0, 1.0),
        show=percent,
        line_at=None if base is None else (base, f"base policy {percent(base)}"),
    )


def results(summary: Summary, point: PointSummary) -> list[Result]:
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
            DotRow(
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
    return dot_chart(
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
        groups: dict[float, list[Result]] = {}
        names: dict[float, str] = {}
        for number, (value, final) in zip(numbers.tolist(), runs, strict=True):
            groups.setdefault(number, []).append(final)
            names[number] = value
        if 2 <= len(groups) <= MAX_VALUES:
            by_value = [(names[number], groups[number]) for number in sorted(groups)]
            drawn.append(effect_panel(short[name], by_value, summary.base))
        elif ordered and len(groups) > 1:
            finals = [final for _, final in runs]
            panel = scatter_panel(short[name], numbers.tolist(), finals, summary.base)
            drawn.append(panel)
    return drawn
