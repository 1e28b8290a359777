"""What the configuration of a run becomes in MLflow."""

from __future__ import annotations

import contextlib
import http.server
import logging
import sqlite3
import threading

import pytest
from mlflow.tracking import MlflowClient

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.lock import Owner, this_process
from pld_ray.jobs import open_tracker as jobs_tracker
from pld_ray.jobs.open_tracker import (
    check_tracker,
    default_run_name,
    open_tracker,
    send_tracked,
    told_of_end,
    untracked_unless,
)
from pld_ray.runs.listing import list_folder
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.runs.status import RUNNING, is_held
from pld_ray.sweep import plan
from pld_ray.sweep import trial as sweep_trial
from pld_ray.sweep.config import Sweep, SweepConfig
from pld_ray.tracking import mlflow_run, mlflow_store, tags
from pld_ray.tracking.mlflow_record import sqlite_path, sqlite_uri, write_record

POINT = "algorithm.residual_scale=0.5, algorithm.utd=2"
TRIAL = {"sweep": "grid", "trial": "t0003", "point": POINT}


@pytest.fixture
def uri(store):
    return sqlite_uri(store)


@pytest.fixture
def config(uri) -> TrainConfig:
    config = TrainConfig(seed=7)
    config.policy.type = "none"
    config.tracking.uri = uri
    return config


def data_of(uri: str, run_id: str):
    return MlflowClient(uri, uri).get_run(run_id).data


def test_a_trial_is_named_and_tagged_by_its_point(config, uri, tmp_path, monkeypatch):
    monkeypatch.setenv(tags.COMMIT_VARIABLE, "c0ffee")
    run = RunDir(tmp_path / "t0003")
    tracker = open_tracker(
        config,
        run,
        kind="trial",
        parent_run_id="1" * 32,
        extra_tags=TRIAL,
        preset="tabletop",
        varied={"runners.num_env_runners, algorithm.residual_scale": "[2, 0.5]"},
    )
    assert tracker is not None
    tracker.finish()
    data = data_of(uri, tracker.run_id)
    assert data.tags["mlflow.runName"] == "t0003 num_env_runners,residual_scale=[2, 0.5] seed=7"
    with contextlib.closing(sqlite3.connect(sqlite_path(uri))) as connection:
        rows = "SELECT key FROM params WHERE run_uuid = ? ORDER BY rowid LIMIT 2"
        first = [key for (key,) in connection.execute(rows, [tracker.run_id])]
    assert first == ["runners.num_env_runners", "algorithm.residual_scale"]
    assert data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert data.tags["mlflow.parentRunId"] == "1" * 32
    expected = {"pld_ray.kind": "trial", "preset": "tabletop", "base_policy": "none", "seed": "7"}
    assert {**expected, **TRIAL, "run_dir": str(run.path)}.items() <= data.tags.items()
    assert data.params["runners.num_env_runners"] == "2"
    assert "output_dir" not in data.params

    elsewhere = RunDir(tmp_path / "another machine")
    again = open_tracker(config, elsewhere, kind="trial", parent_run_id="1" * 32, extra_tags=TRIAL)
    assert again is not None
    assert again.run_id == tracker.run_id
    elsewhere.journal.restore(40)
    again.restored(40)
    again.finish()
    assert data_of(uri, again.run_id).tags["resumed_at_step"] == "40"


@pytest.mark.parametrize(
    ("error", "begun", "status"),
    [
        (ConfigError("no room"), False, "KILLED"),
        (KeyboardInterrupt(), False, "KILLED"),
        (SystemExit(15), True, "KILLED"),  # as Ray ends it on SIGTERM
        (RuntimeError("broken"), True, "FAILED"),
    ],
)
def test_a_run_that_has_not_begun_leaves_none_in_mlflow(
    error, begun, status, config, uri, tmp_path
):
    run, log = RunDir(tmp_path / "run"), logging.getLogger(__name__)
    tracker = open_tracker(config, run)
    with pytest.raises(type(error)), told_of_end(tracker, log, lambda: begun):
        raise error
    info = MlflowClient(uri, uri).get_run(tracker.run_id).info
    assert info.lifecycle_stage == ("active" if begun else "deleted")
    assert (run.path / "mlflow_run.json").exists() == begun
    assert info.status == status
    assert not is_held(run.path)


@pytest.mark.parametrize(
    ("where", "error", "left"),
    [
        ("write_record", KeyboardInterrupt, "FINISHED"),  # it has said nothing yet
        ("checked_tags", KeyboardInterrupt, "KILLED"),
        ("flatten_params", MemoryError, "FAILED"),
    ],
)
def test_a_run_that_ends_before_its_parameters_are_logged_does_not_run_on(
    where, error, left, config, uri, tmp_path, monkeypatch
):
    run, kept = RunDir(tmp_path / "run"), RunDir(tmp_path / "kept")
    tracker = open_tracker(config, kept)
    tracker.finish()
    before = known_runs(uri)

    def stop(*args):
        raise error

    monkeypatch.setattr(jobs_tracker if where == "flatten_params" else mlflow_run, where, stop)
    with pytest.raises(error):
        open_tracker(config, run)
    (made,) = known_runs(uri).keys() - before.keys()
    assert known_runs(uri)[made] == ("KILLED", "deleted")
    assert not (run.path / "mlflow_run.json").exists()
    assert not is_held(run.path)
    with pytest.raises(error):
        open_tracker(config, kept)
    assert known_runs(uri)[tracker.run_id] == (left, "active")


def known_runs(uri: str) -> dict[str, tuple[str, str]]:
    """Status and stage of every run, by its id."""
    with contextlib.closing(sqlite3.connect(sqlite_path(uri))) as file:
        rows = file.execute("SELECT run_uuid, status, lifecycle_stage FROM runs").fetchall()
    return {run_id: (status, stage) for run_id, status, stage in rows}


@pytest.mark.parametrize("begun", [True, False])
def test_learners_that_come_to_nothing_leave_no_run_in_mlflow(begun, config, uri, tmp_path):
    run = RunDir(tmp_path / "run")
    tracker = open_tracker(config, run)  # in a process of its own
    tracker.finish("FAILED")
    with pytest.raises(RunError), untracked_unless(run, lambda: begun):
        raise RunError("four starts")
    stage = MlflowClient(uri, uri).get_run(tracker.run_id).info.lifecycle_stage
    assert stage == ("active" if begun else "deleted")


def test_a_try_asks_the_server_and_makes_nothing(config, tmp_path, monkeypatch):
    config.tracking.uri = "htp://localhost:5000"
    with pytest.raises(ConfigError, match=r"htp://localhost:5000 cannot be used .*tracking\.uri"):
        check_tracker(config)
    config.tracking.uri = "http://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9 cannot be used"):
        check_tracker(config)
    config.tracking.enabled = False
    check_tracker(config)
    config.tracking.enabled, config.tracking.uri = True, f"sqlite:///{tmp_path}/new/mlflow.db"
    check_tracker(config)
    assert not list(tmp_path.iterdir())


def test_a_run_without_tracking_has_no_tracker(config, tmp_path):
    config.tracking.enabled = False
    assert open_tracker(config, RunDir(tmp_path)) is None


def test_a_run_is_named_by_task_and_seed():
    assert default_run_name(TrainConfig(seed=2), {}, {}) == f"{TrainConfig().env.task}-seed2"


def test_user_mistakes_are_one_sentence(config, uri, tmp_path):
    config.tracking.uri = "htp://localhost:5000"
    with pytest.raises(ConfigError, match=r"htp://localhost:5000 cannot be used .*tracking\.uri"):
        open_tracker(config, RunDir(tmp_path / "typo"))
    with pytest.raises(ConfigError, match=r"mlflow_run\.json is missing: this run was not tracked"):
        send_tracked(tmp_path)
    with pytest.raises(ConfigError, match=r"absent: no such folder"):
        send_tracked(tmp_path / "absent")
    config.tracking.uri = uri
    run = RunDir(tmp_path / "run")
    tracker = open_tracker(config, run)
    assert tracker is not None
    tracker.finish()
    with pytest.raises(ConfigError, match=r"typo\.db, the MLflow store, is missing"):
        send_tracked(run.path, f"sqlite:///{tmp_path}/typo.db")
    assert not list(tmp_path.glob("typo.db*"))  # MLflow would have made one
    assert send_tracked(run.path, f"{uri}?timeout=60").num_left == 0
    (tmp_path / "sent").mkdir()
    write_record(tmp_path / "sent", f"sqlite:///{tmp_path}/gone.db", "1" * 32)
    assert send_tracked(tmp_path / "sent").num_left == 0  # nothing was left: nobody is asked
    run.claim()
    with pytest.raises(ConfigError, match="is in use by this process"):
        send_tracked(run.path)
    run.release()
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9 cannot .*--tracking_uri=\.\.\. "):
        send_tracked(run.path, "http://127.0.0.1:9")
    (run.path / "mlflow_run.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"mlflow_run\.json must hold tracking_uri and run_id"):
        open_tracker(config, run)


def test_the_commit_is_that_of_the_checkout_or_absent(monkeypatch, tmp_path):
    monkeypatch.delenv(tags.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(tags, "PACKAGE", tmp_path / "site-packages" / "pld_ray")
    assert tags.git_commit() == ""
    (tmp_path / "site-packages" / ".git").mkdir(parents=True)
    assert tags.git_commit() == ""  # no repository after all


class Clock:
    """An hour passes with each look at a store that is away."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += 3600.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(mlflow_store, "time", clock)
    return clock


def test_a_trial_that_begins_in_a_night_without_the_server_waits_for_it(
    config, uri, tmp_path, clock, caplog
):
    caplog.set_level(logging.INFO, "pld_ray.tracking")
    config.tracking.uri = "http://127.0.0.1:9"  # nothing listens there
    trial = {"kind": "trial", "parent_run_id": "1" * 32, "extra_tags": TRIAL}
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9 cannot be used"):
        open_tracker(config, RunDir(tmp_path / "t0003"), **trial)
    assert clock.now == 12 * 3600
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 12
    assert said[2].startswith("waiting for it, 7200 of 43200 s: MLflow at http://127.0.0.1:9")

    began = clock.now
    with pytest.raises(ConfigError):  # a user is told at once
        open_tracker(config, RunDir(tmp_path / "run"))
    config.tracking.uri = f"sqlite:///{tmp_path}/no folder/mlflow.db"
    (tmp_path / "no folder").touch()
    with pytest.raises(ConfigError):
        open_tracker(config, RunDir(tmp_path / "t0003"), **trial)
    assert clock.now == began + 3600  # longer than a file is waited for


def server(answer):
    """An HTTP server of this process, which answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

        do_POST = do_GET

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    return found


@pytest.mark.parametrize(("answer", "waits"), [(401, 0), (403, 0), (404, 0), (503, 12)])
def test_a_trial_does_not_wait_for_a_server_that_refuses(answer, waits, config, tmp_path, clock):
    trial = {"kind": "trial", "parent_run_id": "1" * 32, "extra_tags": TRIAL}
    with server(answer) as away:
        config.tracking.uri = f"http://127.0.0.1:{away.server_port}"
        try:
            with pytest.raises(ConfigError, match=f"cannot be used .*{answer}"):
                open_tracker(config, RunDir(tmp_path / "t0003"), **trial)
        finally:
            away.shutdown()
    assert clock.now == waits * 3600


@pytest.mark.parametrize(
    ("address", "host", "hours"),
    [
        ("localhost", "another-node", 1),  # longer than a file is waited for
        ("127.0.0.1", "another-node", 1),
        ("[::1]", "another-node", 1),
        ("192.0.2.1", "another-node", 12),
        ("localhost", this_process().host, 12),
    ],
)
def test_a_trial_waits_long_for_its_own_node_s_server_where_the_sweep_is(
    address, host, hours, config, tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(jobs_tracker, "find_child", away)
    config.tracking.uri = f"http://{address}:9"
    trial = {"kind": "trial", "parent_run_id": "1" * 32, "extra_tags": TRIAL, "sweep_host": host}
    with pytest.raises(ConfigError):
        open_tracker(config, RunDir(tmp_path / "t0003"), **trial)
    assert clock.now == hours * 3600


def test_a_trial_is_told_where_its_sweep_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "this_process", lambda: Owner(1, "the-sweep-s"))
    told = {}
    monkeypatch.setattr(sweep_trial, "open_tracker", lambda *a, **how: told.update(how))
    sweep = Sweep(SweepConfig(space={"seed": {"grid": [0]}}), TrainConfig(), "default")
    trial = sweep_trial.SweepTrial.__new__(sweep_trial.SweepTrial)
    trial._run, trial._config = RunDir(tmp_path), TrainConfig()
    monkeypatch.setattr(sweep_trial.SweepTrial, "trial_name", "t0000")
    trial._track({"seed": 0}, plan.context(sweep, tmp_path, "", "1" * 32), "grid")
    assert told["sweep_host"] == "the-sweep-s"


def away(*where):
    raise ConnectionError("away")


def test_a_trial_that_waits_says_so_to_who_looks(config, uri, tmp_path, clock, monkeypatch):
    folder = tmp_path / "sweep"
    run = RunDir(folder / "trials" / "t0003")
    run.create(config)
    write_json_atomically(folder / "sweep.json", {"name": "grid", "num_trials": 1})
    said = []

    def look(*where):
        said.append(list_folder(folder))
        if len(said) < 2:
            raise ConnectionError("MLflow at http://there is away")

    monkeypatch.setattr(jobs_tracker, "find_child", look)
    run.claim()
    run.set_status(RUNNING)
    trial = {"kind": "trial", "parent_run_id": "1" * 32, "extra_tags": TRIAL}
    tracker = open_tracker(config, run, **trial)
    assert tracker is not None
    said.append(list_folder(folder))
    tracker.finish()
    run.release()
    waits = "waiting for its MLflow store: MLflow at http://there is away"
    reasons = [[(row.kind, row.reason) for row in rows] for rows in said]
    assert [reason for _, reason in reasons[1]] == [f"t0003: {waits}", waits]
    assert [{reason for _, reason in rows} for rows in reasons[::2]] == [{""}, {""}]


def test_a_trial_begins_when_the_server_is_back(clock):
    answers = iter([ConnectionError("away"), ConnectionError("away"), 7])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert mlflow_store.retried(ask, 8000.0) == 7
    assert clock.now == 7200
