"""A row for each setting: single runs, interval, summary; for a wide page and for a phone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pld_ray.charts.numbers import CHARACTER, clip
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
)

SWARM = 5
"""Dots side by side; more of them lie over one another."""
APART = 5
"""Pixels; two dots closer than this would hide one another."""


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
    shifts = swarm([place for place, _ in dots])
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


def swarm(places: Sequence[float]) -> list[float]:
    """Sideways shifts that keep dots at (nearly) one place apart: 0, then +, -, ++ and so on.

    Args:
        places: ascending, in pixels.
    """
    shifts: list[float] = []
    run = 0
    for i, place in enumerate(places):
        run = run + 1 if i and place - places[i - run - 1] < APART else 0
        turn = run % SWARM
        shifts.append(APART * ((turn + 1) // 2) * (1 if turn % 2 else -1))
    return shifts


def _arrow(x: float, y: float) -> Markup:
    """Not reached by here."""
    return path([(x, y - 5), (x + 9, y), (x, y + 5)], "arrow", close=True)
