"""Old base, base + residual and distilled base beside each other: a table and a plot."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pld_ray.files.atomic import write_atomically, write_json_atomically
from pld_ray.runs.layout import SUMMARY_FILE
from pld_ray.statistics import wilson_interval
from pld_ray.tracking.plots import plot_successes

TABLE_FILE, PLOT_FILE = "table.md", "success.png"


@dataclass(frozen=True)
class Row:
    """Outcomes of one task on the same held init states."""

    task: str
    base: list[bool]
    residual: list[bool] | None
    """None: no residual of this task was distilled."""
    distilled: list[bool]


def write_results(
    out: pathlib.Path,
    rows: Sequence[Row],
    policy: pathlib.Path,
    runs: Sequence[str],
    seed: int,
) -> dict[str, Any]:
    """`summary.json`, `table.md` and `success.png`.

    Returns:
        The summary: means over trained tasks (`base_success`, `residual_success`,
        `distilled_success`), what distilling changed, the greatest loss on a task that was not
        distilled, and each task's rates.
    """
    trained = [row for row in rows if row.residual is not None]
    others = [row for row in rows if row.residual is None]
    base, distilled = mean(trained, lambda r: r.base), mean(trained, lambda r: r.distilled)
    residual = mean(trained, lambda r: r.residual or [])
    losses = [100 * (rate(row.base) - rate(row.distilled)) for row in others]
    summary = {
        "base_success": base,
        "residual_success": residual,
        "distilled_success": distilled,
        "distilled_minus_base_points": points(distilled, base),
        "distilled_over_residual": ratio(distilled, residual),
        "untrained_loss_points": round(max(losses), 1) if losses else None,
        "mean_of_all_tasks": {
            "base": mean(rows, lambda r: r.base),
            "distilled": mean(rows, lambda r: r.distilled),
        },
        "tasks": {
            row.task: {
                "base": rate(row.base),
                "residual": None if row.residual is None else rate(row.residual),
                "distilled": rate(row.distilled),
            }
            for row in rows
        },
        "n_episodes": len(rows[0].base),
        "policy": str(policy),
        "runs": list(runs),
        "seed": seed,
    }
    write_json_atomically(out / SUMMARY_FILE, summary)
    write_atomically(out / TABLE_FILE, table(rows))
    series: dict[str, list[list[bool] | None]] = {
        "base": [row.base for row in rows],
        "base + residual": [row.residual for row in rows],
        "distilled": [row.distilled for row in rows],
    }
    plot_successes([row.task for row in rows], series, out / PLOT_FILE)
    return summary


def table(rows: Sequence[Row]) -> str:
    """Markdown, with 95 % intervals."""
    lines = ["| task | base | base + residual | distilled |", "|---|---|---|---|"]
    for row in rows:
        cells = [row.base, row.residual, row.distilled]
        shown = " | ".join("not distilled" if cell is None else cell_text(cell) for cell in cells)
        lines.append(f"| {row.task.replace('_', ' ')} | {shown} |")
    return "\n".join(lines) + "\n"


def cell_text(outcomes: Sequence[bool]) -> str:
    """`82 % (69 to 90)`."""
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    return f"{100 * rate(outcomes):.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def rate(outcomes: Sequence[bool]) -> float:
    """Share of successes."""
    return round(sum(outcomes) / len(outcomes), 4)


def mean(rows: Sequence[Row], of: Callable[[Row], list[bool]]) -> float | None:
    """Mean over tasks; None without one."""
    return round(sum(rate(of(row)) for row in rows) / len(rows), 4) if rows else None


def points(one: float | None, other: float | None) -> float | None:
    """Difference in percentage points."""
    return None if one is None or other is None else round(100 * (one - other), 1)


def ratio(one: float | None, other: float | None) -> float | None:
    """One over the other."""
    return None if one is None or not other else round(one / other, 3)
