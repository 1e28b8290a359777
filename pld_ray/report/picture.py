"""The success curves of a report as one PNG, for papers and chats."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pld_ray.charts.numbers import percent, short_number
from pld_ray.report.summary import Curve, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    with matplotlib.rc_context(STYLE | plain):  # type: ignore[arg-type]
        figure = Figure(figsize=(10, 6), dpi=120)
        rows = -(-(highlighted + 1) // 2)
        figure.subplots_adjust(left=0.08, right=0.98, top=0.93, bottom=0.14 + 0.04 * rows)
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
        figure.legend(
            handles[::-1], names[::-1], loc="lower left", ncols=2, bbox_to_anchor=(0.06, 0.01)
        )
        png = io.BytesIO()
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": SOFTWARE})
    return png.getvalue()


def _draw_curve(axes: Axes, curve: Curve | None, index: int, label: str, highlighted: int) -> None:
    if curve is None:
        return
    front = index < highlighted
    colour = COLOURS[index % len(COLOURS)] if front else GREY
    style: dict[str, Any] = {"color": colour, "lw": 2.0 if front else 1.0, "zorder": 2 + front}
    n = curve.complete
    axes.plot(curve.steps[:n], curve.mean[:n], label=label if front else None, **style)
    axes.plot(curve.steps[max(n - 1, 0) :], curve.mean[max(n - 1, 0) :], ls="--", **style)
    if front and curve.low is not None and curve.high is not None:
        axes.fill_between(curve.steps[:n], curve.low, curve.high, color=colour, alpha=0.15, lw=0)
