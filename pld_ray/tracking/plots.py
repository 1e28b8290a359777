"""The learning curve of a run as one picture."""

from __future__ import annotations

import io
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from pld_ray.charts.numbers import short_number
from pld_ray.files.atomic import write_atomically
from pld_ray.statistics import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]

BASE, RESIDUAL, WARN, GREY = "#6b7280", "#1d6fb8", "#c2410c", "#9ca3af"
STYLE: dict[str, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


def plot_successes(
    tasks: Sequence[str],
    series: Mapping[str, Sequence[Sequence[bool] | None]],
    path: str | os.PathLike[str],
) -> pathlib.Path:
    """Draw success rates with 95 % intervals as bars, a group for each task; 1200 px wide PNG.

    Args:
        tasks: names.
        series: who played -> the outcomes in each task; None where nobody did.
        path: the PNG, written whole or not at all.

    Returns:
        `path`.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(dict(STYLE)):  # type: ignore[arg-type]
        figure = Figure(figsize=(12, 1.2 + 0.9 * len(tasks)), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        height = 0.8 / len(series)
        for k, ((name, played), color) in enumerate(
            zip(series.items(), (GREY, BASE, RESIDUAL), strict=False)
        ):
            for number, outcomes in enumerate(played):
                if outcomes is None:
                    continue
                rate = sum(outcomes) / len(outcomes)
                low, high = wilson_interval(sum(outcomes), len(outcomes))
                place = number + (k - (len(series) - 1) / 2) * height
                label = name if number == _first_played(played) else None
                axes.barh(place, rate, 0.9 * height, color=color, label=label)
                axes.plot([low, high], [place, place], color="black", linewidth=1)
        axes.set_yticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("success on held init states")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
    return write_atomically(path, buffer.getvalue())


def _first_played(played: Sequence[Sequence[bool] | None]) -> int:
    """Where a series begins, which carries its entry in the legend."""
    return next((k for k, outcomes in enumerate(played) if outcomes is not None), -1)


def plot_learning_curve(
    rows: Rows,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    value_range: Sequence[float],
) -> pathlib.Path:
    """Draw success, Q, residual scale and temperature over environment steps; 1200 x 800 PNG.

    Args:
        rows: of `metrics.jsonl`. Keys read, any of which a row may lack: `env_steps`,
            `eval/base_success`, `eval/validation_base_success`, `eval/residual_success`
            (rates in [0, 1]), `eval/n_episodes`,
            `train/success_rate`, `train/assisted_success_rate`, `train/intervention_share`,
            `learner/q_mean`, `learner/q_out_of_bound`, `residual_scale`, `learner/alpha`.
        path: the PNG, written whole or not at all.
        title: task and seed.
        value_range: lowest and highest return that the reward allows.

    Returns:
        `path`.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(12, 8), dpi=100, layout=layout)
        grid = figure.add_gridspec(2, 3, height_ratios=(1.45, 1.0))
        success = figure.add_subplot(grid[0, :])
        q, scale, temperature = (figure.add_subplot(grid[1, i]) for i in range(3))
        figure.suptitle(title, fontsize=13, fontweight="bold", x=0.012, ha="left")
        _draw_success(success, rows)
        _draw_q(q, rows, value_range)
        _draw_scale(scale, rows)
        _draw_temperature(temperature, rows)
        _label_steps(success, rows, max_ticks=10)
        for axes in (q, scale, temperature):
            _label_steps(axes, rows, max_ticks=5)
        canvas = FigureCanvasAgg(figure)
        png = io.BytesIO()
        canvas.print_png(png)
    return write_atomically(path, png.getvalue())


def series(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """Environment steps and values of the rows that have a finite `key`."""
    found = [(r["env_steps"], r[key]) for r in rows if _is_number(r.get(key)) and "env_steps" in r]
    return [int(step) for step, _ in found], [float(value) for _, value in found]


def _draw_success(axes: Axes, rows: Rows) -> None:
    steps, rate = series(rows, "train/success_rate")
    if steps:
        axes.plot(steps, rate, color=RESIDUAL, alpha=0.35, lw=1.2, label="training (running)")
    _draw_person(axes, rows)
    _draw_base(axes, rows)
    evaluated = [r for r in rows if _is_number(r.get("eval/residual_success"))]
    if evaluated:
        steps, rate = series(evaluated, "eval/residual_success")
        low, high = zip(*(_interval(r, "eval/residual_success") for r in evaluated), strict=True)
        axes.fill_between(steps, low, high, color=RESIDUAL, alpha=0.18, lw=0)
        axes.vlines(steps, low, high, color=RESIDUAL, alpha=0.35, lw=1.0)  # seen even when alone
        axes.plot(
            steps,
            rate,
            color=RESIDUAL,
            lw=2.2,
            marker="o",
            ms=5,
            label=f"base + residual, evaluated: last {_percent(rate[-1])}, "
            f"best {_percent(max(rate))}",
        )
    axes.set(title="Success rate (bands: 95 % intervals)", ylim=(-0.02, 1.02))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _legend_or_note(axes, "lower right")


def _draw_person(axes: Axes, rows: Rows) -> None:
    """Where a person helped: success with help, and the share of the steps that they acted."""
    steps, share = series(rows, "train/intervention_share")
    if steps:
        label = f"steps by a person: last {_percent(share[-1])}"
        axes.fill_between(steps, share, color=WARN, alpha=0.18, lw=0, label=label)
    steps, rate = series(rows, "train/assisted_success_rate")
    if steps:
        axes.plot(steps, rate, color=WARN, alpha=0.5, lw=1.2, label="training, assisted")


def _draw_base(axes: Axes, rows: Rows) -> None:
    """On the states of the curve, or on the held ones where nothing else is known."""
    for key, states in (("eval/validation_base_success", "same"), ("eval/base_success", "held")):
        evaluated = [r for r in rows if _is_number(r.get(key))]
        if not evaluated:
            continue
        last = evaluated[-1]  # rows may repeat one evaluation of the frozen policy: do not pool
        low, high = _interval(last, key)
        rate = last[key]
        label = f"base policy, {states} states: {_percent(rate)}"
        axes.axhspan(low, high, color=BASE, alpha=0.14, lw=0)
        axes.axhline(rate, color=BASE, lw=1.8, ls="--", label=label)
        return


def _interval(row: Mapping[str, Any], key: str) -> tuple[float, float]:
    """95 % interval of a rate; the rate itself where the number of episodes is unknown."""
    n = row.get("eval/n_episodes")
    if not _is_number(n) or n < 1:
        return row[key], row[key]
    return wilson_interval(min(max(row[key], 0.0), 1.0) * n, int(n))


def _draw_q(axes: Axes, rows: Rows, value_range: Sequence[float]) -> None:
    for bound in value_range:
        axes.axhline(bound, color=GREY, lw=1.0, ls=":")
    steps, q = series(rows, "learner/q_mean")
    if steps:
        axes.plot(steps, q, color=RESIDUAL, lw=1.6, label="Q, mean")
    steps, outside = series(rows, "learner/q_out_of_bound")
    if steps:
        axes.plot(steps, outside, color=WARN, lw=1.2, label="share out of bound")
    low, high = value_range
    axes.set_title(f"Q and its bound [{low:g}, {high:g}]")
    _legend_or_note(axes, "best")


def _draw_scale(axes: Axes, rows: Rows) -> None:
    steps, scale = series(rows, "residual_scale")
    if steps:
        axes.plot(steps, scale, color=RESIDUAL, lw=1.8, label="beta")
        top = max([1.0, *scale])
        axes.set_ylim(-0.04 * top, 1.1 * top)
    axes.set_title("Residual scale \N{GREEK SMALL LETTER BETA}")
    _legend_or_note(axes)


def _draw_temperature(axes: Axes, rows: Rows) -> None:
    steps, alpha = series([r for r in rows if _positive(r.get("learner/alpha"))], "learner/alpha")
    if steps:
        axes.set_yscale("log")
        decades = math.floor(math.log10(min(alpha))), math.ceil(math.log10(max(alpha)))
        axes.set_ylim(10.0 ** decades[0], 10.0 ** max(decades[1], decades[0] + 1))
        axes.plot(steps, alpha, color=RESIDUAL, lw=1.6, label="alpha")
    axes.set_title("Temperature \N{GREEK SMALL LETTER ALPHA} (log)")
    _legend_or_note(axes)


def _legend_or_note(axes: Axes, loc: Literal["best", "lower right"] | None = None) -> None:
    if not axes.get_legend_handles_labels()[0]:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_yticks([])
    elif loc is not None:
        axes.legend(loc=loc)


def _label_steps(axes: Axes, rows: Rows, max_ticks: int) -> None:
    from matplotlib.ticker import MaxNLocator

    last = max((r["env_steps"] for r in rows if "env_steps" in r), default=0)
    axes.set_xlim(0, 1.015 * max(last, 1))
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_locator(MaxNLocator(max_ticks, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0
