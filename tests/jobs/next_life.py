"""Lives of a tracked run; imports little, for a process that is to begin soon."""

from __future__ import annotations

import pathlib

from pld_ray.config import TrainConfig
from pld_ray.jobs.open_tracker import open_tracker
from pld_ray.runs.run_dir import RunDir


def tracked(config: TrainConfig, run: RunDir, step: int, name: str) -> str:
    """One life of a run; its MLflow run's id."""
    tracker = open_tracker(config, run)
    tracker.log_metrics({"success": float(step)}, step)
    file = run.path / name
    file.write_text(name)
    tracker.log_artifact(file)
    tracker.finish("KILLED")
    return tracker.run_id


def go_on(folder: str | pathlib.Path) -> None:
    """Its second one, with the configuration that the folder has."""
    run = RunDir(folder)
    tracked(run.load_config(), run, 2, "second.txt")
