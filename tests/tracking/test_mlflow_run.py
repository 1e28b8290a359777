"""MLflow runs on a real sqlite store, a real MLflow server, and ports where nothing answers."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pld_ray.tracking.mlflow_record import RECORD_FILE, read_record
from pld_ray.tracking.mlflow_run import MissingRunError, MlflowRun


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One sqlite store for the module: making its tables takes seconds."""
    return tmp_path_factory.mktemp("store")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def history(run: MlflowRun, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in run._client.get_metric_history(run.run_id, key)]


def test_logs_params_metrics_and_artifacts(store, tmp_path):
    @dataclasses.dataclass
    class Optimizer:
        lr: float = 3e-4
        betas: tuple[float, float] = (0.9, 0.999)

    curve = tmp_path / "curve.png"
    curve.write_bytes(b"png")
    with MlflowRun(
        tmp_path / "run",
        store_dir=store,
        experiment_name="residual",
        run_name="can, seed 0",
        parent_run_id="0" * 32,
        tags={"suite": "pld_tabletop"},
    ) as run:
        run.log_params(
            {"algorithm": {"optimizer": Optimizer(), "dims": [1, 0]}, "long": "x" * 9000}
        )
        run.log_metrics(
            {"eval/success": np.float32(0.5), "steps": 3, "not yet": None, "loss": float("nan")},
            step=100,
        )
        run.log_metrics({"eval/success": True, "odd [key]": 1.0}, step=200)
        run.log_artifact(curve, "plots")
    logged = run._client.get_run(run.run_id)

    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "can, seed 0"
    assert logged.data.tags["mlflow.parentRunId"] == "0" * 32
    assert logged.data.tags["suite"] == "pld_tabletop"
    assert logged.data.params["algorithm.optimizer.lr"] == "0.0003"
    assert logged.data.params["algorithm.optimizer.betas"] == "[0.9, 0.999]"
    assert logged.data.params["algorithm.dims"] == "[1, 0]"
    assert len(logged.data.params["long"]) == 6000
    assert history(run, "eval/success") == [(100, 0.5), (200, 1.0)]
    assert history(run, "odd _key_") == [(200, 1.0)]
    assert history(run, "tracking/non_finite") == [(100, 1.0)]
    assert "loss" not in logged.data.metrics
    assert "not yet" not in logged.data.metrics
    copies = list((store / "mlartifacts").rglob("plots/curve.png"))
    assert [c.read_bytes() for c in copies] == [b"png"]


def test_resume_continues_the_same_run(store, tmp_path):
    first = MlflowRun(tmp_path, store_dir=store)
    first.log_params({"utd": 1, "seed": 0})
    first.log_metrics({"success": 0.4}, step=10)
    first.finish("KILLED")

    again = MlflowRun.resume(tmp_path)
    assert again.run_id == first.run_id
    assert again._client.get_run(again.run_id).info.status == "RUNNING"
    again.log_params({"utd": 2, "seed": 0, "tau": 0.005})
    again.log_metrics({"success": 0.6}, step=20)
    again.finish()

    data = again._client.get_run(again.run_id).data
    assert data.params == {"utd": "1", "seed": "0", "tau": "0.005"}
    assert data.tags["changed.utd"] == "2"
    assert "changed.seed" not in data.tags
    assert history(again, "success") == [(10, 0.4), (20, 0.6)]
    assert read_record(tmp_path) == {"tracking_uri": first.tracking_uri, "run_id": first.run_id}


def test_two_runs_share_an_experiment_and_finish_with_their_status(store, tmp_path):
    with pytest.raises(ZeroDivisionError), MlflowRun(tmp_path / "a", store_dir=store) as failed:
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), MlflowRun(tmp_path / "b", store_dir=store) as killed:
        raise KeyboardInterrupt
    infos = [run._client.get_run(run.run_id).info for run in (failed, killed)]
    assert [info.status for info in infos] == ["FAILED", "KILLED"]
    assert infos[0].experiment_id == infos[1].experiment_id


def test_resume_says_what_is_missing(store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mlflow_run\.json is missing"):
        MlflowRun.resume(tmp_path)

    uri = f"sqlite:///{store / 'mlflow.db'}"
    with pytest.raises(MissingRunError, match="MLflow run abc is missing at sqlite"):
        MlflowRun(tmp_path, tracking_uri=uri, run_id="abc")

    run = MlflowRun(tmp_path, store_dir=store)
    run._client.delete_run(run.run_id)
    with pytest.raises(MissingRunError, match=r"is deleted at .*mlflow runs restore"):
        MlflowRun.resume(tmp_path)

    record = {"tracking_uri": f"sqlite:///{tmp_path}/moved/mlflow.db", "run_id": run.run_id}
    (tmp_path / RECORD_FILE).write_text(json.dumps(record))
    with pytest.raises(FileNotFoundError, match=r"moved/mlflow\.db.* is missing: .*tracking\.uri"):
        MlflowRun.resume(tmp_path)
    assert not (tmp_path / "moved").exists()

    (tmp_path / RECORD_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"mlflow_run\.json must hold tracking_uri and run_id"):
        MlflowRun.resume(tmp_path)


def test_misuse_is_named(store, tmp_path):
    run = MlflowRun(tmp_path, store_dir=store)
    with pytest.raises(TypeError, match="metric 'videos' is a list"):
        run.log_metrics({"videos": [1, 2]}, step=0)
    with pytest.raises(FileNotFoundError, match=r"cannot log .*nothing\.png"):
        run.log_artifact(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match="status='DONE'"):
        run.finish("DONE")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", "localhost:{port}"])
def test_unusable_uri_fails_quickly_with_one_sentence(tmp_path, uri):
    uri = uri.format(port=free_port())
    from mlflow.tracking import MlflowClient  # noqa: F401  the import's seconds are not measured

    start = time.monotonic()
    with pytest.raises(ConnectionError) as error:
        MlflowRun(tmp_path, tracking_uri=uri)
    assert time.monotonic() - start < 5
    text = str(error.value)
    assert uri in text
    assert "--tracking.uri=" in text
    assert "--tracking.enabled=false" in text
    assert "\n" not in text
    assert len(text) < 600
    assert not (tmp_path / RECORD_FILE).exists()
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_a_server_that_accepts_but_never_answers_fails_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own value is respected
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="cannot be used"):
            MlflowRun(tmp_path, tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert time.monotonic() - start < 5
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1"


def test_artifacts_that_cannot_be_stored_do_not_hold_up_metrics(tmp_path, store, caplog):
    run = MlflowRun(tmp_path / "run", store_dir=store, experiment_name="blocked")
    folder = store / "mlartifacts" / run.run_id
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where MLflow wants its folder")
    run.log_artifact(tmp_path / "run" / RECORD_FILE)
    run.log_metrics({"success": 0.5}, step=1)
    assert history(run, "success") == [(1, 0.5)]
    assert run.num_queued == 1
    assert "artifacts, cannot be reached" in caplog.text
    folder.unlink()
    assert run.flush()
    assert (folder / "artifacts" / RECORD_FILE).is_file()


class Server:
    """MLflow's own REST application on a port that outlives it."""

    def __init__(self, port: int) -> None:
        from mlflow.server import app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", port, app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_training_survives_an_outage_and_nothing_is_lost(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{store / 'mlflow.db'}")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(store / "served"))
    port = free_port()
    server = Server(port)
    run = MlflowRun(tmp_path, tracking_uri=f"http://127.0.0.1:{port}", experiment_name="served")
    run.log_metrics({"success": 0.1}, step=1)
    server.stop()

    start = time.monotonic()
    with caplog.at_level(logging.INFO, logger="pld_ray"):
        for step in range(2, 1502):
            run.log_metrics({"success": step / 2000, "loss": 1.0}, step=step)
        run.set_tag("phase", "train")
        assert time.monotonic() - start < 5  # further attempts wait: no request for each report
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert f"127.0.0.1:{port} cannot be reached" in warnings[0]
        assert run.num_queued == 3001

        server = Server(port)
        assert run.flush()
        assert "answers again" in caplog.text
        run.finish()
    data = run._client.get_run(run.run_id).data
    assert len(run._client.get_metric_history(run.run_id, "success")) == 1501
    assert data.metrics["success"] == 1501 / 2000
    assert data.tags["phase"] == "train"
    server.stop()


def test_finishing_without_a_server_says_what_was_lost(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{store / 'mlflow.db'}")
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", str(store / "served"))
    port = free_port()
    server = Server(port)
    uri = f"http://127.0.0.1:{port}"
    run = MlflowRun(tmp_path, tracking_uri=uri, experiment_name="served", queue_size=100)
    server.stop()
    for step in range(150):
        run.log_metrics({"success": 0.5}, step=step)
    run.finish()
    assert "is incomplete (not sent: 100 x Metric, dropped: 50 x Metric)" in caplog.text
    assert str(tmp_path / "metrics.jsonl") in caplog.text


def test_a_new_store_is_made_silently(tmp_path):
    """Table creation and migrations print many INFO lines where the root logger shows INFO."""
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO);"
        "from pld_ray.tracking import MlflowRun;"
        "assert 'mlflow' not in sys.modules and 'matplotlib' not in sys.modules;"
        f"run = MlflowRun({str(tmp_path)!r}); run.log_metrics({{'a': 1}}, step=1); run.finish();"
        "assert __import__('mlflow').active_run() is None"
    )
    root = pathlib.Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlflow.db", RECORD_FILE]
