"""Series over environment steps, with bands and marks, for a wide page and for a phone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pld_ray.charts.numbers import percent, short_number
from pld_ray.charts.svg import (
    WIDE,
    Markup,
    Scale,
    both,
    css_width,
    dot,
    grouped,
    line,
    path,
    picture,
    text,
    x_axis,
    y_axis,
)


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
    note: str
    """A word or two for the margin, a line each."""
    css: str


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
            y_axis(y, x.start, x.end, show_y),
            x_axis(x, y.start, y.end, "environment steps", short_number, 9 if width == WIDE else 5),
        ]
        parts += [_draw_line(series, x, y, scope) for series in reversed(lines)]
        free = -math.inf  # the margin's notes keep off one another, from the top down
        for mark in sorted(marks, key=lambda mark: -mark.value):
            at, note = y(mark.value), mark.note.split("\n")
            parts.append(line(x.start, at, x.end, at, mark.css))
            first = max(at - 6.5 * (len(note) - 1), free)
            free = first + 13 * len(note)
            parts += [
                text(x.end + 5, first + 4 + 13 * i, word, f"{mark.css} note")
                for i, word in enumerate(note)
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
