import json
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from stores import hold_port

from pld_ray.config import ConfigError
from pld_ray.report.inputs import select
from pld_ray.report.runs import HISTORIES, INTERVENTION_SHARE
from pld_ray.report.store import load_runs
from pld_ray.report.summary import n_episodes, summarize
from pld_ray.tracking.mlflow_run import MlflowRun

LOGGED = set(HISTORIES) - {INTERVENTION_SHARE}
"""Nobody acted in these runs; what a run has not logged is not asked for."""


@pytest.fixture(scope="module")
def server_log(tmp_path_factory):
    """Where the server writes a line for each request."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def server(sweep, server_log):
    """`mlflow server` over the store of the sweep."""
    held = hold_port("127.0.0.1")
    port = held.getsockname()[1]
    store, address = sweep.parent / "mlflow.db", f"http://127.0.0.1:{port}"
    log = server_log
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--backend-store-uri", f"sqlite:///{store}"],
            stdout=out,
            stderr=out,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while not answers(f"{address}/health"):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    yield address
    os.killpg(process.pid, 15)
    process.wait(120)
    held.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def load(uri: str, folder: pathlib.Path):
    run_id = json.loads((folder / "mlflow_run.json").read_text())["run_id"]
    return load_runs(uri, [run_id])[0]


def assert_equal_runs(one, other):
    assert (one.run_id, one.name, one.status) == (other.run_id, other.name, other.status)
    assert one.start_ms == other.start_ms
    assert (one.params, one.tags) == (other.params, other.tags)
    assert one.latest == other.latest
    assert one.metrics.keys() == other.metrics.keys()
    for key, series in one.metrics.items():
        np.testing.assert_array_equal(series.steps, other.metrics[key].steps)
        np.testing.assert_array_equal(series.values, other.metrics[key].values)


def test_a_file_and_a_server_give_the_same_runs(sweep, server, server_log):
    parent, trials = load(f"sqlite:///{sweep.parent / 'mlflow.db'}", sweep)
    assert len(trials) == 36
    assert set(trials[0].metrics) == LOGGED
    assert trials[0].latest["eval/base_success"] == 0.56
    before = server_log.read_text().count("HTTP/1.1")
    other_parent, other_trials = load(server, sweep)
    requests = server_log.read_text().count("HTTP/1.1") - before
    assert requests == 1 + 1 + 36 * len(LOGGED)  # the sweep, its 36 trials, their histories
    assert_equal_runs(parent, other_parent)
    for one, two in zip(trials, other_trials, strict=True):
        assert_equal_runs(one, two)


def test_runs_of_training_are_not_asked_for_trials(sweep, server, server_log):
    ids = [run.run_id for run in select([str(sweep)]).runs[:4]]
    before = server_log.read_text().count("HTTP/1.1")
    assert [run.run_id for run in select(ids, server).runs] == ids
    assert server_log.read_text().count("HTTP/1.1") - before == 4 + 4 * len(LOGGED)


def test_a_login_is_sent_and_a_refused_one_is_one_sentence(monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self.headers["Authorization"])
            self.send_error(401)

        def log_message(self, *arguments):
            pass

    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "Aladdin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "open sesame")
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigError, match=r"401.*MLFLOW_TRACKING_USERNAME"):
            load_runs(uri, ["0" * 32])
        server.shutdown()
    assert server.seen == ["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="]  # of RFC 7617


@pytest.mark.parametrize("where", ["sqlite", "server"])
def test_an_unknown_run_id_is_named_with_its_store(sweep, server, where):
    uri = server if where == "server" else f"sqlite:///{sweep.parent / 'mlflow.db'}"
    with pytest.raises(ConfigError, match=f"has no MLflow run {'0' * 32}: check the id"):
        load_runs(uri, ["0" * 32])


def test_a_deleted_run_says_how_to_restore_it_and_a_deleted_trial_is_left_out(store):
    parent = store.run("sweep", tags={"pld_ray.kind": "sweep"})
    trials = [store.run(name, parent=parent) for name in ("t0", "t1")]
    store.client.delete_run(trials[0])
    found, children = load_runs(store.uri, [parent])[0]
    assert (found.run_id, [c.run_id for c in children]) == (parent, [trials[1]])
    with pytest.raises(
        ConfigError, match=r"restore it with `MLFLOW_TRACKING_URI=sqlite:.* mlflow runs restore"
    ):
        load_runs(store.uri, [trials[0]])


def test_values_that_are_not_numbers_are_left_out(store):
    run_id = store.run("r", metrics={"residual_scale": [(1, 0.5), (2, float("nan")), (3, 1.0)]})
    run, _ = load_runs(store.uri, [run_id])[0]
    assert run.metrics["residual_scale"].steps.tolist() == [1, 3]


def test_a_server_that_does_not_answer_is_one_sentence():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, but nobody listens
        uri = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"MLflow at {uri} cannot be read .*start the server"):
            load_runs(uri, ["0" * 32])


def test_a_file_that_is_gone_or_no_store_is_one_sentence(tmp_path):
    with pytest.raises(
        ConfigError, match=r"mlflow.db, the MLflow store, is missing: .*tracking_uri"
    ):
        load_runs(f"sqlite:///{tmp_path / 'mlflow.db'}", ["0" * 32])
    (tmp_path / "text.db").write_text("not a database, but long enough to look at\n" * 50)
    with pytest.raises(ConfigError, match=r"text.db cannot be read as .* with --tracking_uri="):
        load_runs(f"sqlite:///{tmp_path / 'text.db'}", ["0" * 32])
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (x)")
    with pytest.raises(ConfigError, match=r"empty.db is no MLflow store: .* with --tracking_uri="):
        load_runs(f"sqlite:///{tmp_path / 'empty.db'}", ["0" * 32])


def test_a_run_that_went_back_or_on_shows_what_it_is_now(store, tmp_path):
    """Its first end is no result any more, and evaluations that it went back behind are none."""

    def train(run, steps, success, held=None):
        for step in steps:
            run.log_metrics({"updates": 2 * step, "time/wall_s": step / success}, step)
            run.log_metrics({"eval/residual_success": success, "eval/base_success": 0.5}, step)
        if held is not None:
            run.log_metrics({"eval/held_residual_success": held}, steps[-1])

    def seen():
        ((run,),) = (point.runs for point in summarize(select([str(tmp_path / "run")])).points)
        found = run.run.metrics["eval/residual_success"]
        return run.run.env_steps, run.final, run.held, run.wall_s, found.values.tolist()

    with MlflowRun(tmp_path / "run", tracking_uri=store.uri) as run:
        train(run, (10, 20, 25, 30), 0.8, held=0.375)
    assert seen() == (30, 0.375, True, 37.5, [0.8] * 4)
    for steps, held, expected in (
        ((20,), None, (20, 0.4, False, 50.0, [0.8, 0.4])),
        ((20, 30), 0.25, (30, 0.25, True, 75.0, [0.8, 0.4, 0.4])),
    ):
        with MlflowRun.resume(tmp_path / "run") as run:
            run.journal.restore(10, gives_up=True)
            run.restored(10)
            train(run, steps, 0.4, held)
        assert seen() == expected
    with MlflowRun.resume(tmp_path / "run") as run:
        run.journal.restore(30)
        run.restored(30)
        assert seen()[1:3] == (0.25, True)
        train(run, (40,), 0.5)
    assert seen() == (40, 0.5, False, 80.0, [0.8, 0.4, 0.4, 0.5])


# --- what was asked for ---------------------------------------------------------------------------


def test_a_sweep_brings_its_trials_and_a_run_given_twice_counts_once(sweep):
    trial = sweep / "trials" / "t0003"
    selection = select([str(sweep), str(trial)])
    assert len(selection.runs) == 36
    assert selection.title == "residual scale and UTD"
    assert selection.sweep_of(selection.runs[0]).run_id == selection.sweeps[0].run_id
    alone = select([str(trial)])
    assert [run.trial for run in alone.runs] == ["t0003"]


def test_a_run_id_needs_a_store(sweep):
    run_id = select([str(sweep / "trials" / "t0003")]).runs[0].run_id
    uri = f"sqlite:///{sweep.parent / 'mlflow.db'}"
    assert select([run_id], uri).runs[0].trial == "t0003"
    with pytest.raises(ConfigError, match=f"{run_id} is an MLflow run id: say in which store"):
        select([run_id])


def test_a_store_that_moved_is_given_with_the_tracking_uri(sweep, tmp_path):
    (tmp_path / "run").mkdir()
    record = (sweep / "mlflow_run.json").read_text().replace(str(sweep.parent), "/elsewhere")
    (tmp_path / "run" / "mlflow_run.json").write_text(record)
    with pytest.raises(ConfigError, match=r"/elsewhere/mlflow.db, the MLflow store, is missing"):
        select([str(tmp_path / "run")])
    uri = f"sqlite:///{sweep.parent / 'mlflow.db'}"
    assert len(select([str(tmp_path / "run")], uri).runs) == 36


def test_a_folder_without_a_record_says_what_to_give(sweep, tmp_path):
    with pytest.raises(ConfigError, match=r"holds no mlflow_run.json: give the folder of a run"):
        select([str(tmp_path)])
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(ConfigError, match="this run was not tracked"):
        select([str(tmp_path)])
    with pytest.raises(ConfigError, match=r"pld-ray report .*t0000 .*t0002 \.\.\."):
        select([str(sweep / "trials")])
    with pytest.raises(ConfigError, match="nowhere: no such folder, and no MLflow run id either"):
        select(["nowhere"])
    (tmp_path / "mlflow_run.json").write_text("{")
    with pytest.raises(ConfigError, match="must hold tracking_uri and run_id"):
        select([str(tmp_path)])


def test_a_run_that_goes_on_with_another_setting_is_of_that_setting(tmp_path):
    first = MlflowRun(tmp_path / "run", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    first.log_params({"total_steps": 15_000, "seed": 0, "evaluation": {"validation_states": 40}})
    first.finish("KILLED")
    with MlflowRun.resume(tmp_path / "run") as again:
        again.log_params({"total_steps": 20_000, "seed": 0})
        again.log_metrics({"eval/residual_success": 0.5, "eval/n_episodes": 40}, step=10)
        again.log_metrics({"eval/base_success": 0.5, "eval/n_episodes": 100}, step=20)
    (run,) = select([str(tmp_path / "run")]).runs
    assert (run.params["total_steps"], run.params["seed"]) == ("20000", "0")
    assert n_episodes([SimpleNamespace(run=run)]) == 40
