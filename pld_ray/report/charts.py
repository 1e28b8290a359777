"""The report's charts as inline SVG, each drawn for a wide page and for a phone.

A series has the class `sN` (its colour, by rank) and the attribute `data-series`, through which the
legend brings it to the front; `muted` ones are grey.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pld_ray.report.svg import (
    CHARACTER,
    Markup,
    Scale,
    clip,
    dot,
    line,
    path,
    percent,
    picture,
    short_number,
    text,
    x_axis,
    y_axis,
)

COLOURS = 8
SWARM = 5
"""Dots side by side; more of them lie over one another."""
WIDE, NARROW = 1040, 340
"""Widths in pixels; the page shows one of the two."""


@dataclass(frozen=True)
class Line:
    """One series of a line chart."""

    index: int
    """Place in the legend, from 0."""
    name: str
    x: Sequence[float]
    y: Sequence[float]
    muted: bool = False
    solid: int | None = None
    """Leading points drawn solid; None is all. The rest is dashed."""
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """Band over the first points."""
    dots: Sequence[tuple[float, float]] = ()
    """Single measurements, drawn where there is no band."""


@dataclass(frozen=True)
class Mark:
    """A horizontal line across a chart."""

    value: float
    words: str
    """A word or two for the margin, a line each."""
    css: str


@dataclass(frozen=True)
class DotRow:
    """One row of a dot chart."""

    index: int
    name: str
    values: Sequence[float]
    """Finite values are dots; for an infinite one see `censored`."""
    hollow: Sequence[float] = ()
    """Further values, of runs that did not get to their end."""
    centre: float | None = None
    low: float | None = None
    high: float | None = None
    censored: Sequence[float] = field(default_factory=list)
    """Places of open arrows: not reached by there."""
    muted: bool = False


def both(draw: Callable[[int], Markup]) -> Markup:
    """A chart in both widths."""
    return Markup('<div class="chart">{}{}</div>').format(draw(WIDE), draw(NARROW))


def css_width(width: int) -> str:
    """The class by which the page shows or hides a chart of this width."""
    return "wide" if width == WIDE else "narrow"


def series_class(index: int, muted: bool) -> str:
    """Colour and state of a series."""
    return f"series s{index % COLOURS}{' muted' * muted}"


def grouped(index: int, muted: bool, parts: Sequence[Markup], scope: str = "") -> Markup:
    """The parts of one series."""
    return Markup('<g class="{}" data-series="{}">{}</g>').format(
        series_class(index, muted), f"{scope}{index}", Markup("").join(parts)
    )


# --- lines ----------------------------------------------------------------------------------------


def line_chart(
    lines: Sequence[Line],
    label: str,
    *,
    marks: Sequence[Mark] = (),
    y_range: tuple[float, float] = (0.0, 1.0),
    show_y: Callable[[float], str] = percent,
    height: tuple[int, int] = (400, 300),
    scope: str = "",
) -> Markup:
    """Series over environment steps; the first one lies in front.

    Args:
        label: what the chart shows, for screen readers.
        marks: named in the margin on the right, where no data are.
        height: of the wide and of the narrow chart, in pixels.
        scope: set apart from the points' legend where the lines are something else.
    """

    def draw(width: int) -> Markup:
        high = height[0] if width == WIDE else height[1]
        right = max((x for s in lines for x in s.x), default=1.0) or 1.0
        x = Scale(0, right, 46, width - (42 if marks else 14))
        y = Scale(*y_range, high - 46, 14)
        parts = [
            y_axis(y, x.start, x.end, show_y, 6),
            x_axis(x, y.start, y.end, "environment steps", short_number, 9 if width == WIDE else 5),
        ]
        parts += [_draw_line(series, x, y, scope) for series in reversed(lines)]
        free = -math.inf  # the margin's words keep off one another, from the top down
        for mark in sorted(marks, key=lambda mark: -mark.value):
            at, words = y(mark.value), mark.words.split("\n")
            parts.append(line(x.start, at, x.end, at, mark.css))
            first = max(at - 6.5 * (len(words) - 1), free)
            free = first + 13 * len(words)
            parts += [
                text(x.end + 5, first + 4 + 13 * i, word, f"{mark.css} note")
                for i, word in enumerate(words)
            ]
        return picture(width, high, label, Markup("").join(parts), css_width(width))

    return both(draw)


def _draw_line(series: Line, x: Scale, y: Scale, scope: str) -> Markup:
    points = [(x(a), y(b)) for a, b in zip(series.x, series.y, strict=True)]
    parts = []
    if series.low is not None and series.high is not None:
        n = len(series.low)
        upper = [(px, y(v)) for (px, _), v in zip(points[:n], series.high, strict=True)]
        lower = [(px, y(v)) for (px, _), v in zip(points[:n], series.low, strict=True)]
        parts.append(path(upper + lower[::-1], "band", close=True))
    solid = len(points) if series.solid is None else series.solid
    if solid:
        parts.append(path(points[:solid], "line"))
    if solid < len(points):
        parts.append(path(points[max(solid - 1, 0) :], "line dashed"))
    if len(points) == 1:
        parts.append(dot(*points[0], 4, "dot"))
    parts += [dot(x(a), y(b), 2.5, "dot faint") for a, b in series.dots]
    parts.append(Markup("<title>{}</title>").format(series.name))
    return grouped(series.index, series.muted, parts, scope)


# --- dots -----------------------------------------------------------------------------------------


def dot_chart(
    rows: Sequence[DotRow],
    label: str,
    *,
    x_name: str,
    x_range: tuple[float, float],
    show: Callable[[float], str],
    line_at: tuple[float, str] | None = None,
) -> Markup:
    """A row per point: a dot for each run, a bar for the interval, a tick for the summary.

    On a phone the names stand above their rows.
    """

    def draw(width: int) -> Markup:
        wide = width == WIDE
        names = max((len(row.name) for row in rows), default=0) * CHARACTER
        left = min(max(names + 20, 80), 0.42 * width) if wide else 8
        pitch, offset = (26, 0) if wide else (40, 8)
        top = 26 if line_at is not None else 10
        bottom = top + pitch * len(rows)
        x = Scale(*x_range, left + 6, width - 36)
        parts = [x_axis(x, bottom, top, x_name, show, 9 if wide else 5)]
        if line_at is not None:
            at = x(line_at[0])
            room = len(line_at[1]) * CHARACTER
            anchor = "end" if at + room > width else "start"
            parts.append(line(at, top, at, bottom, "base"))
            parts.append(text(at, top - 8, line_at[1], "base note", anchor))
        for number, row in enumerate(rows):
            middle = top + pitch * (number + 0.5) + offset
            parts.append(_draw_row(row, x, middle, left, wide, width))
        return picture(width, bottom + 46, label, Markup("").join(parts), css_width(width))

    return both(draw)


def _draw_row(row: DotRow, x: Scale, y: float, left: float, wide: bool, width: int) -> Markup:
    if wide:
        name = text(left - 8, y + 4, clip(row.name, left - 16), "name", "end", row.name)
    else:
        name = text(8, y - 14, clip(row.name, width - 16), "name", "start", row.name)
    parts = [name]
    if row.low is not None and row.high is not None:
        parts.append(line(x(row.low), y, x(row.high), y, "interval"))
    dots = sorted(
        [(x(v), True) for v in row.values if math.isfinite(v)] + [(x(v), False) for v in row.hollow]
    )
    shifts = swarm([place for place, _ in dots], 5)
    parts += [
        dot(place, y + shift, 3.5, dot_class(complete))
        for (place, complete), shift in zip(dots, shifts, strict=True)
    ]
    for value, count in Counter(row.censored).items():
        parts.append(_arrow(x(value), y))
        if count > 1:
            parts.append(text(x(value) + 12, y + 4, f"\N{MULTIPLICATION SIGN}{count}", "tick"))
    if row.centre is not None and math.isfinite(row.centre):
        parts.append(line(x(row.centre), y - 8, x(row.centre), y + 8, "centre"))
    return grouped(row.index, row.muted, parts)


def dot_class(complete: bool) -> str:
    """A run's dot is hollow where the run did not get to its end."""
    return "dot faint" if complete else "hollow"


def swarm(places: Sequence[float], radius: float) -> list[float]:
    """Sideways shifts that keep dots at (nearly) one place apart: 0, then +, -, ++ and so on.

    Args:
        places: ascending, in pixels.
        radius: two dots closer than this would hide one another.
    """
    shifts: list[float] = []
    run = 0
    for i, place in enumerate(places):
        run = run + 1 if i and place - places[i - run - 1] < radius else 0
        turn = run % SWARM
        shifts.append(radius * ((turn + 1) // 2) * (1 if turn % 2 else -1))
    return shifts


def _arrow(x: float, y: float) -> Markup:
    """Not reached by here."""
    return path([(x, y - 5), (x + 9, y), (x, y + 5)], "arrow", close=True)
