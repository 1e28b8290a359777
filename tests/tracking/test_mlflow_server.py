"""A real `mlflow server`: what it holds after outages, kills and restarts is each point once."""

from __future__ import annotations

import json
import logging
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from chaos import wait_for
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from pld_ray.runs.layout import MLFLOW_FILE
from pld_ray.tracking.mlflow_record import sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.mlflow_store import find_child, get_or_create_experiment
from pld_ray.tracking.sending import send_left

SCRIPT = pathlib.Path(__file__).with_name("logging_process.py")


def steps_of(uri: str, run_id: str, key: str) -> list[int]:
    client = MlflowClient(uri, uri)
    return sorted(point.step for point in client.get_metric_history(run_id, key))


def search_as_a_page(server, host: str) -> int:
    """Status of the request by which MLflow's page, opened as `http://host/`, asks for its runs."""
    request = urllib.request.Request(
        f"{server.uri}/ajax-api/2.0/mlflow/runs/search",
        json.dumps({"experiment_ids": ["0"]}).encode(),
        {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_browser_gets_runs_from_the_documented_server_and_its_tunnel_and_nowhere_else(
    mlflow_server,
):
    itself = mlflow_server.uri.removeprefix("http://")
    tunnels = ["localhost:5000", "localhost:15000", "127.0.0.1:5000"]
    assert [search_as_a_page(mlflow_server, host) for host in (itself, *tunnels)] == [200] * 4
    assert search_as_a_page(mlflow_server, "rebinding.example.org") == 403
    foreign = urllib.request.Request(
        f"{mlflow_server.uri}/ajax-api/2.0/mlflow/runs/search",
        b"{}",
        {"Origin": "http://evil.example.org"},
    )
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(foreign, timeout=60)


@pytest.mark.parametrize("kind", ["sqlite", "http"])
def test_a_batch_that_is_sent_twice_is_stored_once(mlflow_server, kind):
    uri = mlflow_server.uri if kind == "http" else sqlite_uri(mlflow_server.folder)
    client = MlflowClient(uri, uri)
    experiment = get_or_create_experiment(client, uri, "twice")
    run = client.create_run(experiment.experiment_id)
    points = [Metric("loss", 1 / 3 + step, 1_700_000_000_000 + step, step) for step in range(900)]
    points += [Metric("alpha", 1e-17 * step, 1_700_000_000_000, step) for step in range(100)]
    client.log_batch(run.info.run_id, points[:500])
    client.log_batch(run.info.run_id, points)  # half of it is there
    client.log_batch(run.info.run_id, points)
    assert steps_of(uri, run.info.run_id, "loss") == list(range(900))
    assert steps_of(uri, run.info.run_id, "alpha") == list(range(100))


@pytest.mark.chaos
def test_a_process_that_is_killed_and_restarted_logs_each_point_once(mlflow_server, tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), mlflow_server.uri, "700"]
    metrics = tmp_path / "metrics.jsonl"
    for lines in (150, 400):
        process = subprocess.Popen(command)
        deadline = time.monotonic() + 120
        while not metrics.is_file() or metrics.read_bytes().count(b"\n") < lines:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
    subprocess.run(command, check=True, timeout=300)

    uri = mlflow_server.uri
    run_id = json.loads((tmp_path / MLFLOW_FILE).read_text())["run_id"]
    assert steps_of(uri, run_id, "loss") == list(range(1, 701))
    assert steps_of(uri, run_id, "time/wall_s") == list(range(1, 701))
    assert steps_of(uri, run_id, "eval") == list(range(10, 701, 10))
    run = MlflowClient(uri, uri).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert int(run.data.tags["resumed_at_step"]) % 20 == 0


def test_nothing_is_lost_or_doubled_when_the_server_dies_and_returns(
    mlflow_server, tmp_path, caplog
):
    artifact = tmp_path / "curve.png"
    artifact.write_bytes(b"png")
    run = MlflowRun(tmp_path / "run", tracking_uri=mlflow_server.uri, experiment_name="outage")
    left = MlflowRun(tmp_path / "left", tracking_uri=mlflow_server.uri, experiment_name="outage")
    run.log_params({"seed": 0})
    for step in range(1, 200):
        run.log_metrics({"success": step / 2000, "loss": 1.0}, step)
    mlflow_server.kill()  # in the middle of a batch, or between two
    for step in range(200, 1000):
        run.log_metrics({"success": step / 2000, "loss": 1.0}, step)
    run.set_tag("phase", "train")
    run.log_artifact(artifact)
    assert not run.flush(budget_s=10, patience_s=2)

    def num_told():
        messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        return sum("cannot be reached" in message for message in messages)

    wait_for(lambda: num_told() >= 2, "what is said at a second failure, of points and artifacts")
    assert num_told() == 2
    run.finish("KILLED", budget_s=1, patience_s=0.1)
    left.log_metrics({"success": 0.5}, 1)
    left.finish(budget_s=1, patience_s=0.1)

    again = MlflowRun.resume(tmp_path / "run")  # the folder knows enough to go on without a server
    again.journal.restore(900)
    again.restored(900)
    for step in range(901, 1501):
        again.log_metrics({"success": step / 2000, "loss": 2.0}, step)
    assert again.num_queued > 1200
    mlflow_server.start()
    again.finish()
    assert again.num_queued == 0

    client = MlflowClient(again.tracking_uri, again.tracking_uri)
    for key in ("success", "loss"):
        assert steps_of(again.tracking_uri, again.run_id, key) == list(range(1, 1501))
    found = client.get_run(again.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["success"] == 0.75
    assert found.data.params == {"seed": "0"}
    assert found.data.tags["phase"] == "train"
    assert [a.path for a in client.list_artifacts(again.run_id)] == ["curve.png"]

    assert client.get_run(left.run_id).info.status == "RUNNING"
    assert send_left(tmp_path / "left").num_left == 0
    assert client.get_run(left.run_id).info.status == "FINISHED"
    assert steps_of(left.tracking_uri, left.run_id, "success") == [1]


def test_a_trial_whose_folder_is_gone_finds_its_run(mlflow_server, tmp_path):
    uri = mlflow_server.uri
    with MlflowRun(tmp_path / "sweep", tracking_uri=uri, experiment_name="lost") as sweep:
        pass
    first = {}
    for trial in ("t0", "t1"):
        with MlflowRun(
            tmp_path / trial,
            tracking_uri=uri,
            experiment_name="lost",
            parent_run_id=sweep.run_id,
            tags={"trial": trial},
        ) as run:
            run.log_metrics({"loss": 1.0}, 10)
            first[trial] = run.run_id
    assert find_child(uri, "lost", sweep.run_id, {"trial": "t1"}) == first["t1"]
    assert find_child(uri, "lost", sweep.run_id, {"trial": "t2"}) is None
    with MlflowRun(tmp_path / "elsewhere", tracking_uri=uri, run_id=first["t1"]) as run:
        run.log_metrics({"loss": 2.0}, 10)
        run.log_metrics({"loss": 2.0}, 20)
    assert steps_of(uri, first["t1"], "loss") == [10, 20]
