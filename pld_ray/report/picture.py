"""The success curves of a report as one PNG, for papers and chats."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pld_ray.charts.numbers import CHARACTER, clip, percent, short_number
from pld_ray.report.summary import Curve, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    "#1d6fb8",
    "#c2410c",
    "#15803d",
    "#a21caf",
    "#a16207",
    "#0e7490",
    "#6d28d9",
    "#be123c",
)
GREY, BASE = "#9ca3af", "#6b7280"
SOFTWARE = "pld-ray report"
"""Written into the PNG, so that a later report knows the file as its own."""
LEGEND_CHARACTERS = 110
"""Of a legend's line: labels beyond that are cut."""


def draw_curves(summary: Summary, labels: Sequence[str], highlighted: int) -> bytes:
    """Success over environment steps of every point, the best ones in colour; a PNG.

    Args:
        labels: legend text of each point.
        highlighted: leading points that get a colour, an interval and a place in the legend.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pld_ray.tracking.plots import STYLE

    plain = {"text.parse_math": False}  # a name may hold dollar signs
    png = io.BytesIO()
    with matplotlib.rc_context(STYLE | plain):  # type: ignore[arg-type]
        figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        fill_figure(figure, summary, labels, highlighted)
        about = {"Software": SOFTWARE}
        figure.savefig(png, format="png", metadata=about, bbox_inches="tight", pad_inches=0.15)
    return png.getvalue()


def fill_figure(figure: Figure, summary: Summary, labels: Sequence[str], highlighted: int) -> None:
    """The curves with their axes, and a legend below."""
    axes = figure.add_subplot()
    for index in reversed(range(len(summary.points))):
        _draw_curve(axes, summary.points[index].curve, index, labels[index], highlighted)
    if (base := summary.base_of_curves) is not None:
        rate, states = base
        label = f"base policy on the {states} states, {percent(rate)}"
        axes.axhline(rate, color=BASE, ls="--", lw=1.5, label=label)
    axes.set(title=summary.selection.title, ylim=(-0.02, 1.02))
    axes.set(xlabel="environment steps", ylabel="success rate")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    handles, names = axes.get_legend_handles_labels()
    names = [clip(name, LEGEND_CHARACTERS * CHARACTER) for name in names]
    columns = 2 if max(map(len, names), default=0) <= LEGEND_CHARACTERS // 2 else 1
    figure.legend(handles[::-1], names[::-1], loc="outside lower left", ncols=columns)


def _draw_curve(axes: Axes, curve: Curve | None, index: int, label: str, highlighted: int) -> None:
    """A dot at each evaluation, so that one alone is seen; hollow where not every run got there."""
    if curve is None:
        return
    front = index < highlighted
    colour = COLOURS[index % len(COLOURS)] if front else GREY
    style: dict[str, Any] = {"color": colour, "lw": 2.0 if front else 1.0, "zorder": 2 + front}
    style |= {"marker": "o", "ms": 5.0 if front else 3.5}
    n, last = curve.complete, max(curve.complete - 1, 0)
    axes.plot(curve.steps[:n], curve.mean[:n], label=label if front else None, **style)
    if curve.is_partial:
        style |= {"ls": "--", "mfc": "white", "markevery": slice(n - last, None)}
        axes.plot(curve.steps[last:], curve.mean[last:], **style)
    if front and curve.low is not None and curve.high is not None:
        axes.fill_between(curve.steps[:n], curve.low, curve.high, color=colour, alpha=0.15, lw=0)
