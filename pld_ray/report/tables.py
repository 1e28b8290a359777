"""The report's rows as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from pld_ray.report.runs import ASSISTED_SUCCESS, AUTONOMOUS_SUCCESS, INTERVENTION_SHARE
from pld_ray.report.summary import PointSummary, RunSummary, Summary

TRIAL_COLUMNS = (
    "trial",
    "point",
    "seed",
    "state",
    "env_steps",
    "base_success",
    "final_success",
    "final_on",
    "best_validation_success",
    "autonomous_success",
    "assisted_success",
    "intervention_share",
    "steps_to_threshold",
    "wall_s",
    "steps_per_s",
    "updates_per_s",
    "stopped",
    "failure",
    "run_id",
    "run_dir",
)
POINT_COLUMNS = (
    "rank",
    "point",
    "n_seeds",
    "iqm_success",
    "mean_success",
    "ci95_low",
    "ci95_high",
    "base_success",
    "steps_to_threshold",
    "not_reached_by",
)


def trial_row(run: RunSummary, point: str) -> dict[str, Any]:
    """One run; None where nothing is recorded, `steps_to_threshold` None where not reached."""
    tags = run.run.tags
    held = "held" if run.held else "validation"
    values: tuple[Any, ...] = (
        run.run.trial,
        point,
        run.run.seed,
        run.run.status,
        run.run.env_steps,
        run.base,
        run.final,
        held if run.final is not None else None,
        run.best,
        run.run.last(AUTONOMOUS_SUCCESS),
        run.run.last(ASSISTED_SUCCESS),
        run.run.last(INTERVENTION_SHARE),
        _reached(run.steps_to_threshold),
        run.wall_s,
        run.steps_per_s,
        run.updates_per_s,
        tags.get("stopped"),
        tags.get("failure"),
        run.run.run_id,
        tags.get("run_dir"),
    )
    return dict(zip(TRIAL_COLUMNS, values, strict=True))


def point_row(rank: int, point: PointSummary) -> dict[str, Any]:
    """One point; its interval is None with fewer than three seeds."""
    reached = _reached(point.steps_to_threshold)
    values: tuple[Any, ...] = (
        rank,
        point.point.name or point.point.label,
        len(point.finals),
        point.iqm,
        point.mean,
        point.low,
        point.high,
        point.base,
        reached,
        point.missed_by if reached is None else None,
    )
    return dict(zip(POINT_COLUMNS, values, strict=True))


def _reached(steps: float) -> int | None:
    return int(steps) if math.isfinite(steps) else None


def trial_rows(summary: Summary) -> list[dict[str, Any]]:
    """Every run, best point first, with the swept values as columns of their own."""
    return [
        trial_row(run, point.point.name or point.point.label) | point.point.values
        for point in summary.points
        for run in point.runs
    ]


def point_rows(summary: Summary) -> list[dict[str, Any]]:
    """Every point, best first, with the swept values as columns of their own."""
    return [
        point_row(rank, point) | point.point.values
        for rank, point in enumerate(summary.points, start=1)
    ]


def to_csv(rows: list[dict[str, Any]], columns: tuple[str, ...], swept: list[str]) -> str:
    """CSV with a header; what is not recorded is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*columns, *swept], restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return round(value, 6) if isinstance(value, float) else value
