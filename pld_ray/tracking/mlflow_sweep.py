"""The MLflow run of a sweep, under which those of its trials are shown."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from pld_ray.tracking.mlflow_record import read_record, sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.tags import process_tags


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
