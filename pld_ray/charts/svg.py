"""Small pieces of SVG: scales, axes, texts, series. Colours come from the page's style sheet.

A series has the class `sN` (its colour, by rank) and the attribute `data-series`, through which the
legend brings it to the front; `muted` ones are grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

COLOURS = 8
WIDE, NARROW = 1040, 340
"""Widths in pixels; the page shows one of the two."""
Y_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """A linear map of values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most `count` round values between low and high, 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        return [low]
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def text(
    x: float, y: float, content: str, css: str = "", anchor: str = "start", title: str = ""
) -> Markup:
    """A text, with a tooltip where `title` is given."""
    tip = Markup("<title>{}</title>").format(title) if title else ""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}{}</text>').format(
        round(x, 1), round(y, 1), css, anchor, content, tip
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    """A straight line."""
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(x1, y1, x2, y2, css)


def path(points: Sequence[tuple[float, float]], css: str, close: bool = False) -> Markup:
    """A polyline; a filled area where it is closed."""
    drawn = "L".join(f"{x:g},{y:g}" for x, y in points)
    return Markup('<path d="M{}{}" class="{}"/>').format(drawn, "Z" if close else "", css)


def dot(x: float, y: float, radius: float, css: str) -> Markup:
    """A circle."""
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}"/>').format(x, y, radius, css)


def x_axis(
    scale: Scale, y: float, top: float, name: str, show: Callable[[float], str], count: int
) -> Markup:
    """Vertical grid lines with numbers below, and the axis' name."""
    parts = []
    for value in ticks(scale.low, scale.high, count):
        parts += [
            line(scale(value), top, scale(value), y, "grid"),
            text(scale(value), y + 17, show(value), "tick", "middle"),
        ]
    parts.append(text((scale.start + scale.end) / 2, y + 36, name, "axis", "middle"))
    return Markup("").join(parts)


def y_axis(scale: Scale, left: float, right: float, show: Callable[[float], str]) -> Markup:
    """Horizontal grid lines with numbers on the left."""
    parts = []
    for value in ticks(scale.low, scale.high, Y_TICKS):
        parts += [
            line(left, scale(value), right, scale(value), "grid"),
            text(left - 8, scale(value) + 4, show(value), "tick", "end"),
        ]
    return Markup("").join(parts)


def picture(width: float, height: float, label: str, content: Markup, css: str = "") -> Markup:
    """An `<svg>` of its own size that shrinks with the page, described by `label`."""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        "{}</svg>"
    ).format(css, width, height, width, height, label, content)


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
