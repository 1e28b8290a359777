"""A sweep's MLflow run: opened, and told which setting is ahead and how sure that is."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from pld_ray.charts.numbers import percent
from pld_ray.config import ConfigError
from pld_ray.runs.layout import BASE_FILE, SUMMARY_FILE, SWEEP_CONFIG_FILE
from pld_ray.runs.status import FINISHED
from pld_ray.tracking.mlflow_record import read_record, sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.tags import process_tags

NOTE_ROWS = 12
METRIC_ROWS = 100

log = logging.getLogger("pld_ray.sweep")


def open_sweep_run(
    sweep_dir: str | os.PathLike[str],
    name: str,
    uri: str | None = None,
    experiment: str = "pld-ray",
    params: Mapping[str, Any] | None = None,
) -> MlflowRun:
    """Make the MLflow run under which a sweep's trials are shown, or continue the folder's.

    Args:
        sweep_dir: folder of the sweep; holds `mlflow_run.json`.
        name: of the sweep, shown in MLflow.
        uri: tracking URI; None is a sqlite file in the folder's parent.
        experiment: MLflow experiment.
        params: logged as `sweep.<name>`.

    Raises:
        ConnectionError, MissingRunError, FileNotFoundError, BlockingIOError: as `MlflowRun`.
    """
    folder = pathlib.Path(sweep_dir).resolve()
    tags = {"sweep": name, **process_tags("sweep")}
    if read_record(folder) is not None:
        run = MlflowRun.resume(folder, tracking_uri=uri, tags=tags)
    else:
        run = MlflowRun(
            folder,
            tracking_uri=uri or sqlite_uri(folder.parent),
            experiment_name=experiment,
            run_name=name,
            tags=tags,
        )
    run.log_params({"sweep": dict(params or {})})
    return run


def publish(
    tracker: MlflowRun, folder: pathlib.Path, summary: Mapping[str, Any], env_steps: int
) -> None:
    """Log counts and tables; once the sweep is over, a metric per setting, the report and the note.

    Args:
        tracker: of the sweep.
        folder: of the sweep; holds the files named below.
        summary: content of its `summary.json`.
        env_steps: of all its trials together, the step at which the figures are logged: a sweep
            that is resumed after failures has new ones.
    """
    counts = {f"sweep/{key}": value for key, value in summary.items() if key.startswith("num_")}
    tracker.log_metrics(counts, env_steps)
    for name in ("trials.csv", SUMMARY_FILE, SWEEP_CONFIG_FILE, BASE_FILE):
        tracker.log_artifact(folder / name)
    if summary["state"] != FINISHED:
        return  # who stops a sweep waits for its end
    made = report(folder, tracker.tracking_uri)
    if made is None:
        return
    for path in made["files"]:
        tracker.log_artifact(path, "report")
    held = held_settings(made)
    figures = {metric_name(row["point"]): row["iqm_success"] for row in held[:METRIC_ROWS]}
    best = {"sweep/best_held_success": held[0]["iqm_success"]} if held else {}
    tracker.log_metrics({**best, **figures}, env_steps)
    tracker.set_tags(
        {
            "mlflow.note.content": note(held, summary),
            "best_setting": held[0]["point"] if held else "",
            "separation": separation(held),
        }
    )


def report(folder: pathlib.Path, tracking_uri: str) -> dict[str, Any] | None:
    """What `pld-ray report` makes of the sweep; None where the store does not give its runs."""
    from pld_ray.report.write import make_report

    try:
        return make_report([str(folder)], tracking_uri=tracking_uri)
    except ConfigError as error:
        log.warning("the sweep's MLflow run gets no report: %s", error)
        return None


def held_settings(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings all of whose evaluated trials got to the held states, best first."""
    short = {
        row["point"]
        for row in made["trials"]
        if row["final_success"] is not None and row["final_on"] != "held"
    }
    known = [row for row in made["points"] if row["iqm_success"] is not None]
    return [row for row in known if row["point"] not in short]


def separation(held: Sequence[Mapping[str, Any]]) -> str:
    """How many of these settings the runs do not tell from the first; empty where they tell all."""
    from pld_ray.report.headline import not_separable
    from pld_ray.report.summary import are_apart

    intervals = [(row["ci95_low"], row["ci95_high"]) for row in held]
    rivals = sum(not are_apart(intervals[0], interval) for interval in intervals[1:])
    return not_separable(rivals, len(held) - 1)


def metric_name(point: str) -> str:
    """`algorithm.residual_scale=0.5, seed=1` as `held_success/residual_scale 0.5 seed 1`."""
    from pld_ray.report.points import parse_point, short_names

    values = parse_point(point)
    names = short_names(list(values))
    words = " ".join(f"{names[key]} {value}" for key, value in values.items()) or point
    return f"held_success/{words}"


def note(held: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Markdown for the top of the run's page: the leading setting and a table of the first ones."""
    lines = [
        f"{summary['num_finished']} of {summary['num_trials']} trials finished, "
        f"{summary['num_stopped_early']} stopped early, {summary['num_failed']} failed."
    ]
    if held:
        first = held[0]
        doubt = separation(held)
        crown = "Highest" if doubt else "Best" if len(held) > 1 else "Result"
        claim = f", {doubt}" if doubt else ""
        lines += [
            f"**{crown}: {first['point']}, {rate(first['iqm_success'])}** on the held states"
            f"{interval(first, ' (95 % interval {})')}{claim}.",
            "",
            "| | setting | held success, IQM | 95 % interval | seeds | base policy |",
            "|---|---|---|---|---|---|",
            *(
                f"| {rank} | {row['point']} | {rate(row['iqm_success'])} | {interval(row, '{}')} | "
                f"{row['n_seeds']} | {rate(row['base_success'])} |"
                for rank, row in enumerate(held[:NOTE_ROWS], start=1)
            ),
        ]
    else:
        lines.append("No setting has been evaluated on the held states.")
    lines += ["", "Curves and tables: `report/report.html` among the artifacts."]
    return "\n".join(lines)


def rate(value: float | None) -> str:
    """0.8333 as `83 %`."""
    return "" if value is None else percent(value)


def interval(row: Mapping[str, Any], words: str) -> str:
    """The interval put into `words`; nothing with fewer than three runs."""
    low, high = row["ci95_low"], row["ci95_high"]
    return "" if low is None else words.format(f"{100 * low:.0f} to {rate(high)}")
