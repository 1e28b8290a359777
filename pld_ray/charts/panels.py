"""Small charts, many to a page: results by the value of a parameter, courses of a dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pld_ray.charts.dots import dot_class, swarm
from pld_ray.charts.numbers import clip, percent, short_number
from pld_ray.charts.svg import (
    Markup,
    Scale,
    dot,
    grouped,
    line,
    path,
    picture,
    text,
    ticks,
    y_axis,
)

PANEL = (320, 230)
"""Size of a panel in pixels."""
COURSE = (330, 104)
MAX_POINTS = 240
"""Of a course."""

Result = tuple[float, bool]
"""Success in [0, 1] of one run, and whether the run got to its end."""


def effect_panel(
    name: str,
    groups: Sequence[tuple[str, Sequence[Result]]],
    base: float | None,
) -> Markup:
    """Results by the value of one parameter: a dot for each run, a line through the means.

    Args:
        groups: (value, results) in the order of the axis.
    """
    width, height = PANEL
    x = Scale(-0.5, len(groups) - 0.5, 46, width - 10)
    y = Scale(0.0, 1.0, height - 46, 12)
    parts = []
    room = (x.end - x.start) / max(len(groups), 1) - 6
    for place, (value, results) in enumerate(groups):
        parts.append(text(x(place), height - 28, clip(value, room), "tick", "middle", value))
        dots = sorted((y(success), complete) for success, complete in results)
        shifts = swarm([at for at, _ in dots])
        parts += [
            dot(x(place) + shift, at, 3, dot_class(complete))
            for (at, complete), shift in zip(dots, shifts, strict=True)
        ]
    means = [
        (x(place), y(float(np.mean([success for success, _ in results]))))
        for place, (_, results) in enumerate(groups)
    ]
    parts += [path(means, "line"), *(dot(px, py, 4, "dot") for px, py in means)]
    return _panel(name, x, y, parts, base)


def scatter_panel(
    name: str,
    values: Sequence[float],
    results: Sequence[Result],
    base: float | None,
) -> Markup:
    """Results over a parameter of many values; its axis is logarithmic from 1 : 30 on."""
    width, height = PANEL
    low, high = min(values), max(values)
    is_log = low > 0 and high / low >= 30
    places = [math.log10(value) for value in values] if is_log else list(values)
    margin = 0.04 * (max(places) - min(places))
    x = Scale(min(places) - margin, max(places) + margin, 46, width - 10)
    y = Scale(0.0, 1.0, height - 46, 12)
    shown = [(at, f"{10**at:.3g}" if is_log else f"{at:.3g}") for at in ticks(x.low, x.high, 7)]
    if is_log:  # whole powers of ten, and their threes where there are few
        powers = range(math.floor(x.low), math.ceil(x.high) + 1)
        marks = [m * 10.0**p for p in powers for m in ((1, 3) if x.high - x.low < 3 else (1,))]
        shown = [(math.log10(v), f"{v:.0e}" if v < 0.01 else f"{v:g}") for v in marks]
        shown = [(at, label) for at, label in shown if x.low <= at <= x.high]
    parts = [text(x(at), height - 28, label, "tick", "middle") for at, label in shown]
    parts += [
        dot(x(at), y(success), 3, dot_class(complete))
        for at, (success, complete) in zip(places, results, strict=True)
    ]
    return _panel(f"{name} (log)" if is_log else name, x, y, parts, base)


def _panel(name: str, x: Scale, y: Scale, parts: Sequence[Markup], base: float | None) -> Markup:
    width, height = PANEL
    frame = [y_axis(y, x.start, x.end, percent)]
    if base is not None:
        frame.append(line(x.start, y(base), x.end, y(base), "base"))
    frame.append(text((x.start + x.end) / 2, height - 8, name, "axis", "middle"))
    content = Markup("").join([*frame, grouped(0, False, parts, "panel")])
    return picture(width, height, f"final success by {name}", content)


def course_panel(label: str, lines: Sequence[tuple[int, npt.NDArray[np.floating]]]) -> Markup:
    """One dimension over an episode.

    Args:
        lines: (place in the legend, values (frames,)) of each; what is not finite is left out.
    """
    width, height = COURSE
    finite = np.concatenate([values[np.isfinite(values)] for _, values in lines])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    margin = 0.0 if high > low else 1.0
    y = Scale(low - margin, high + margin, height - 6, 22)
    parts = [text(60, 13, label, "name")]
    for value in sorted({low, high}):
        parts.append(line(60, y(value), width, y(value), "grid"))
        parts.append(text(55, y(value) + 4, short_number(value), "tick", "end"))
    for series, values in lines:
        x = Scale(0, len(values) - 1, 60, width - 2)
        points = [(x(k), y(v)) for k, v in thinned(values) if math.isfinite(v)]
        parts.append(grouped(series, False, [path(points, "line")] if points else [], "course"))
    return picture(width, height, label, Markup("").join(parts))


def thinned(values: npt.NDArray[np.floating]) -> list[tuple[int, float]]:
    """At most MAX_POINTS points that keep every peak: lowest and highest of each stretch."""
    if len(values) <= MAX_POINTS:
        return list(enumerate(values.tolist()))
    points: list[tuple[int, float]] = []
    for stretch in np.array_split(np.arange(len(values)), MAX_POINTS // 2):
        ends = {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
        points += [(k, float(values[k])) for k in sorted(ends)]
    return points
