"""A run ends while others write into the file of its MLflow store."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from mlflow.tracking import MlflowClient

from pld_ray.tracking.mlflow_record import sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun

pytestmark = pytest.mark.chaos

BUSY_S = 14.0  # longer than a store that does not answer is waited for


def test_the_end_of_a_run_is_told_to_a_database_that_is_busy(tmp_path):
    run = MlflowRun(tmp_path, tracking_uri=sqlite_uri(tmp_path))
    run.log_metrics({"success": 0.5}, step=1)
    assert run.flush()
    other = sqlite3.connect(tmp_path / "mlflow.db", check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(BUSY_S, other.rollback)
    release.start()
    run.finish()
    release.join()
    other.close()
    found = MlflowClient(run.tracking_uri).get_run(run.run_id)
    assert (found.info.status, run.num_queued) == ("FINISHED", 0)
