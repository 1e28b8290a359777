"""The MLflow run of a sweep, under which those of its trials are shown."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from pld_ray.tracking.mlflow_record import read_record, sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.tags import process_tags


class SweepTracker:
    """Parameters, summary and artifacts of a sweep; made by `open`."""

    def __init__(self, run: MlflowRun) -> None:
        self._run = run
        self.run_id, self.tracking_uri = run.run_id, run.tracking_uri

    @classmethod
    def open(
        cls,
        sweep_dir: str | os.PathLike[str],
        name: str,
        uri: str | None = None,
        experiment: str = "pld-ray",
        params: Mapping[str, Any] | None = None,
        note: str = "",
    ) -> SweepTracker:
        """Make the sweep's run, or continue the one that the folder knows.

        Args:
            sweep_dir: folder of the sweep; holds `mlflow_run.json`.
            name: of the sweep, shown in MLflow.
            uri: tracking URI; None is a sqlite file in the folder's parent.
            experiment: MLflow experiment.
            params: logged as `sweep.<name>`.
            note: markdown at the top of the run's page.

        Raises:
            ConnectionError, MissingRunError, FileNotFoundError, BlockingIOError: as `MlflowRun`.
        """
        folder = pathlib.Path(sweep_dir).resolve()
        tags = {"sweep": name, **process_tags("sweep")}
        if note:
            tags["mlflow.note.content"] = note
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
        return cls(run)

    def log_metrics(self, metrics: Mapping[str, Any], step: int = 0) -> None:
        """Log figures of the sweep; `step` is the environment steps of all its trials."""
        self._run.log_metrics(metrics, step)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters as `sweep.<name>`."""
        self._run.log_params({"sweep": dict(params)})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the sweep's run."""
        self._run.set_tags(tags)

    def log_artifact(self, path: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Copy a file or folder to the artifacts; see `MlflowRun.log_artifact`."""
        self._run.log_artifact(path, artifact_path)

    def finish(self, status: str = "FINISHED") -> None:
        """Send what is left and close the run; see `MlflowRun.finish`."""
        self._run.finish(status)
