"""MLflow runs on a real sqlite store, and on ports where nothing answers."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from chaos import wait_for
from mlflow.tracking import MlflowClient

from pld_ray.files.lock import FolderLock
from pld_ray.runs.layout import MLFLOW_FILE
from pld_ray.sweep.publish import open_sweep_run
from pld_ray.tracking.mlflow_record import read_record, sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.mlflow_send import MlflowReceiver
from pld_ray.tracking.mlflow_store import MissingRunError
from pld_ray.tracking.outbox import said_its_end
from pld_ray.tracking.quiet import quick_mlflow
from pld_ray.tracking.sending import Sending, send_left
from pld_ray.tracking.system_metrics import SystemMetrics

RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
QUICKLY = {"budget_s": 2.0, "patience_s": 0.1}


def client_of(run: MlflowRun) -> MlflowClient:
    return MlflowClient(run.tracking_uri, run.tracking_uri)


def history(run: MlflowRun, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client_of(run).get_metric_history(run.run_id, key)]


def go_back(run: MlflowRun, step: int) -> None:
    run.journal.restore(step)
    run.restored(step)


def logged(run: MlflowRun):
    return client_of(run).get_run(run.run_id)


def test_a_relative_store_is_the_same_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with MlflowRun(tmp_path / "run", tracking_uri="sqlite:///mlflow.db") as run:
        assert run.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert read_record(tmp_path / "run")["tracking_uri"] == run.tracking_uri


def test_logs_params_metrics_and_artifacts(store, tmp_path):
    @dataclasses.dataclass
    class Optimizer:
        lr: float = 3e-4
        betas: tuple[float, float] = (0.9, 0.999)

    curve = tmp_path / "curve.png"
    curve.write_bytes(b"png")
    with MlflowRun(
        tmp_path / "run",
        tracking_uri=sqlite_uri(store),
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
    found = logged(run)

    assert found.info.status == "FINISHED"
    assert found.info.run_name == "can, seed 0"
    assert found.data.tags["mlflow.parentRunId"] == "0" * 32
    assert found.data.tags["suite"] == "pld_tabletop"
    assert found.data.params["algorithm.optimizer.lr"] == "0.0003"
    assert found.data.params["algorithm.optimizer.betas"] == "[0.9, 0.999]"
    assert found.data.params["algorithm.dims"] == "[1, 0]"
    assert len(found.data.params["long"]) == 6000
    assert history(run, "eval/success") == [(100, 0.5), (200, 1.0)]
    assert history(run, "odd _key_") == [(200, 1.0)]
    assert history(run, "tracking/non_finite") == [(100, 1.0)]
    assert "loss" not in found.data.metrics
    assert "not yet" not in found.data.metrics
    copies = list((store / "mlartifacts").rglob("plots/curve.png"))
    assert [c.read_bytes() for c in copies] == [b"png"]


def test_resume_continues_the_same_run(store, tmp_path):
    first = MlflowRun(tmp_path, tracking_uri=sqlite_uri(store))
    first.log_params({"utd": 1, "seed": 0})
    first.log_metrics({"success": 0.4}, step=10)
    assert not said_its_end(tmp_path)
    first.finish("KILLED")
    assert said_its_end(tmp_path)
    assert logged(first).info.status == "KILLED"

    again = MlflowRun.resume(tmp_path, tags={"cluster": "1 node"})
    assert not said_its_end(tmp_path)
    assert again.run_id == first.run_id
    again.log_params({"utd": 2, "seed": 0, "tau": 0.005})
    again.log_metrics({"success": 0.6}, step=20)
    assert again.flush()
    assert logged(again).info.status == "RUNNING"
    again.finish()

    data = logged(again).data
    assert data.params == {"utd": "1", "seed": "0", "tau": "0.005"}
    assert data.tags["changed.utd"] == "2"
    assert data.tags["cluster"] == "1 node"
    assert "changed.seed" not in data.tags
    assert history(again, "success") == [(10, 0.4), (20, 0.6)]
    assert read_record(tmp_path) == {"tracking_uri": first.tracking_uri, "run_id": first.run_id}

    back = MlflowRun.resume(tmp_path)
    back.log_params({"utd": 1, "seed": 0})
    back.finish()
    tags = logged(back).data.tags
    assert tags["changed.utd"] == "1"  # as it is now: readers put the tag above the parameter
    assert "changed.seed" not in tags


@pytest.mark.parametrize("another_machine", [False, True])
def test_a_restart_from_a_checkpoint_repeats_no_point(store, tmp_path, another_machine):
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)) as run:
        run.log_params({"seed": 0})
        for value in (1.0, 1.0):  # equal points at one step are two points
            run.log_metrics({"calql": value}, step=0)
        for step in (10, 20, 30):
            run.log_metrics({"loss": 1.0, "time": 0.1 * step}, step)
        run.log_metrics({"eval": 0.5}, 20)
    if another_machine:
        for name in ("metrics.jsonl", "mlflow_outbox.jsonl", "mlflow_sent.json"):
            (tmp_path / name).unlink()
    with MlflowRun.resume(tmp_path) as run:
        go_back(run, 10)
        for value in (1.0, 1.0, 2.0):
            run.log_metrics({"calql": value}, step=0)
        for step in (20, 30, 40):
            run.log_metrics({"loss": 2.0, "time": 7.0, "eval": 0.6}, step)
        go_back(run, 20)  # a learner was lost
        run.log_metrics({"loss": 3.0}, 40)
        run.log_metrics({"loss": 3.0}, 50)
    assert history(run, "loss") == [(10, 1.0), (20, 1.0), (30, 1.0), (40, 2.0), (50, 3.0)]
    assert history(run, "eval") == [(20, 0.5), (30, 0.6), (40, 0.6)]
    assert [value for _, value in history(run, "calql")] == [1.0, 1.0, 2.0]
    assert logged(run).data.tags["resumed_at_step"] == "20"
    assert logged(run).data.params == {"seed": "0"}


def test_a_restart_that_gives_newer_checkpoints_up_logs_its_own_figures(store, tmp_path):
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)) as run:
        for step in (10, 20, 30):
            run.log_metrics({"loss": 1.0, "updates": step}, step)
        run.log_metrics({"held": 0.375}, 30)
    with MlflowRun.resume(tmp_path) as run:
        run.journal.restore(10, gives_up=True)
        run.restored(10)
        run.log_metrics({"loss": 2.0, "updates": 19}, 20)
    with MlflowRun.resume(tmp_path) as run:
        go_back(run, 10)  # it was killed meanwhile
        run.log_metrics({"loss": 3.0, "updates": 18}, 20)
        run.log_metrics({"loss": 3.0, "updates": 29}, 30)
        run.log_metrics({"held": 0.25}, 30)
    assert history(run, "loss") == [(10, 1.0), (20, 1.0), (30, 1.0), (20, 2.0), (30, 3.0)]
    assert history(run, "held") == [(30, 0.375), (30, 0.25)]
    assert logged(run).data.metrics == {"loss": 3.0, "updates": 29.0, "held": 0.25}


def test_two_runs_share_an_experiment_and_finish_with_their_status(store, tmp_path):
    uri = sqlite_uri(store)
    with pytest.raises(ZeroDivisionError), MlflowRun(tmp_path / "a", tracking_uri=uri) as failed:
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), MlflowRun(tmp_path / "b", tracking_uri=uri) as killed:
        raise KeyboardInterrupt
    infos = [logged(run).info for run in (failed, killed)]
    assert [info.status for info in infos] == ["FAILED", "KILLED"]
    assert infos[0].experiment_id == infos[1].experiment_id


def test_resume_says_what_is_missing(store, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"mlflow_run\.json is missing"):
        MlflowRun.resume(tmp_path)

    uri = sqlite_uri(store)
    with pytest.raises(MissingRunError, match="MLflow run abc is missing at sqlite"):
        MlflowRun(tmp_path, tracking_uri=uri, run_id="abc")

    with MlflowRun(tmp_path, tracking_uri=uri) as run:
        pass
    client_of(run).delete_run(run.run_id)
    with pytest.raises(
        MissingRunError, match=r"is deleted at .*`MLFLOW_TRACKING_URI=sqlite:.* mlflow runs restore"
    ):
        MlflowRun.resume(tmp_path)

    record = {"tracking_uri": f"sqlite:///{tmp_path}/moved/mlflow.db", "run_id": run.run_id}
    (tmp_path / MLFLOW_FILE).write_text(json.dumps(record))
    with pytest.raises(FileNotFoundError, match=r"moved/mlflow\.db.* is missing: .*tracking\.uri"):
        MlflowRun.resume(tmp_path)
    assert not (tmp_path / "moved").exists()

    (tmp_path / MLFLOW_FILE).write_text("{}")
    with pytest.raises(ValueError, match=r"mlflow_run\.json must hold tracking_uri and run_id"):
        MlflowRun.resume(tmp_path)


def test_misuse_is_named(store, tmp_path):
    run = MlflowRun(tmp_path, tracking_uri=sqlite_uri(store))
    with pytest.raises(TypeError, match="metric 'videos' is a list"):
        run.log_metrics({"videos": [1, 2]}, step=0)
    with pytest.raises(FileNotFoundError, match=r"cannot log .*nothing\.png"):
        run.log_artifact(tmp_path / "nothing.png")
    with pytest.raises(FileNotFoundError, match=r"cannot log .*learner\.json"):
        run.log_checkpoint(tmp_path / "best")
    with pytest.raises(ValueError, match="status='DONE'"):
        run.finish("DONE")
    run.finish()
    with pytest.raises(RuntimeError, match="is finished: nothing can be logged"):
        run.log_metrics({"success": 0.5}, step=0)


def test_a_second_process_may_not_log_the_same_run(store, tmp_path):
    code = (
        "import pathlib, sys; from pld_ray.tracking.sending import claim;"
        f"claim(pathlib.Path({str(tmp_path)!r}), wait_s=0.2)"
    )
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"{tmp_path} is in use by process {os.getpid()}" in done.stderr
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_run_whose_folder_is_held_by_its_job_leaves_it_held(store, tmp_path):
    lock = FolderLock(tmp_path)
    lock.claim()
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)):
        pass
    assert lock.path.exists()
    lock.release()


def test_the_networks_of_a_checkpoint_are_kept_without_its_replay(store, tmp_path):
    best = tmp_path / "checkpoints" / "best"
    (best / "replay").mkdir(parents=True)
    for name in ("learner.json", "learner.safetensors", "residual_sac.json", "algorithm_state.pkl"):
        (best / name).write_text(name)
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)) as run:
        run.log_checkpoint(best)
    found = client_of(run).list_artifacts(run.run_id, "checkpoints/best")
    assert [pathlib.Path(a.path).name for a in found] == [
        "learner.json",
        "learner.safetensors",
        "residual_sac.json",
    ]


def test_system_metrics_have_one_point_a_step(tmp_path):
    system = SystemMetrics(tmp_path, interval_s=0.0)
    values = system.sample(7)
    assert 10 < values["system/process_memory_mb"] < 1e6
    assert "system/cpu_percent" in values
    assert system.sample(7) == {}
    assert system.sample(8)
    assert SystemMetrics(tmp_path, interval_s=3600.0).sample(0)


def test_the_disk_is_the_run_s_and_a_folder_that_is_gone_ends_nothing(tmp_path, monkeypatch):
    run, here = tmp_path / "run", tmp_path / "here"
    run.mkdir()
    here.mkdir()
    system = SystemMetrics(run, interval_s=0.0)
    monkeypatch.chdir(here)
    here.rmdir()
    assert 0 <= system.sample(1)["system/disk_percent"] <= 100
    run.rmdir()
    values = system.sample(2)
    assert "system/cpu_percent" in values
    assert "system/disk_percent" not in values


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:{port}",
        "localhost:{port}",
        "htp://127.0.0.1:{port}",
        "http://no-such-host.invalid:{port}",
        "sqlite://mlflow.db",
        "sqlite:////dev/null/mlflow.db",
    ],
)
def test_an_unusable_uri_is_one_sentence(tmp_path, uri):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    uri = uri.format(port=port)
    with pytest.raises(ConnectionError) as error:
        MlflowRun(tmp_path, tracking_uri=uri)
    text = str(error.value)
    assert uri in text
    assert "--tracking.uri=" in text
    assert "--tracking.enabled=false" in text
    assert "\n" not in text
    assert len(text) < 700
    assert not (tmp_path / MLFLOW_FILE).exists()
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


def test_a_server_that_accepts_but_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own value is respected
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConnectionError, match="cannot be used"):
            MlflowRun(tmp_path, tracking_uri=f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1"


def test_artifacts_that_cannot_be_stored_do_not_hold_up_metrics(tmp_path, store, caplog):
    run = MlflowRun(tmp_path / "run", tracking_uri=sqlite_uri(store), experiment_name="blocked")
    folder = store / "mlartifacts" / run.run_id
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where MLflow wants its folder")
    run.log_artifact(tmp_path / "run" / MLFLOW_FILE)
    run.log_metrics({"success": 0.5}, step=1)
    with caplog.at_level(logging.WARNING, logger="pld_ray"):
        assert not run.flush(budget_s=20, patience_s=3)
    assert history(run, "success") == [(1, 0.5)]
    assert run.num_queued == 1
    # a second failure says so: its thread may have come to one by now
    wait_for(lambda: "artifacts, cannot be reached" in caplog.text, "the warning")
    folder.unlink()
    assert run.flush()
    assert (folder / "artifacts" / MLFLOW_FILE).is_file()
    run.finish()


def test_a_deleted_experiment_is_what_has_to_be_restored(store, tmp_path):
    """It takes its runs along, and brings them back."""
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store), experiment_name="given up") as run:
        pass
    experiment = logged(run).info.experiment_id
    client_of(run).delete_experiment(experiment)
    with pytest.raises(MissingRunError, match=rf"mlflow experiments restore -x {experiment}`, or"):
        MlflowRun.resume(tmp_path)


def test_a_sender_that_still_tries_at_the_end_does_not_retry_for_minutes():
    """With MLflow's own limits urllib3 would say so on the console, each time."""
    limits = []
    sender = SimpleNamespace(stop=lambda: limits.append(os.environ.get(RETRIES)))
    sending = Sending.__new__(Sending)
    sending._quick, sending._senders = quick_mlflow(5), (sender, sender)
    sending._quick.__enter__()
    sending.close(SimpleNamespace(release=lambda: None))
    assert limits == ["0", "0"]


def test_what_mlflow_refuses_is_left_out_alone(store, tmp_path, caplog):
    with MlflowRun(tmp_path, tracking_uri=sqlite_uri(store)) as run:
        client_of(run).log_param(run.run_id, "seed", "of somebody else")
        run.log_params({"seed": 0, "utd": 1, "tau": 0.005})
        run.log_metrics({"success": 0.5}, step=1)
    assert logged(run).data.params == {"seed": "of somebody else", "utd": "1", "tau": "0.005"}
    assert history(run, "success") == [(1, 0.5)]
    assert "MLflow refused params seed" in caplog.text


def test_a_run_deleted_under_its_training_goes_on_when_it_is_restored(store, tmp_path, caplog):
    run = MlflowRun(tmp_path, tracking_uri=sqlite_uri(store))
    client_of(run).delete_run(run.run_id)
    run.log_metrics({"success": 0.5}, step=1)
    assert not run.flush(budget_s=20, patience_s=2)
    why = f"run {run.run_id} is deleted; `MLFLOW_TRACKING_URI=sqlite:"
    wait_for(lambda: why in caplog.text, "the second failure, which says why")
    client_of(run).restore_run(run.run_id)
    run.finish()
    assert history(run, "success") == [(1, 0.5)]


def test_what_a_run_could_not_send_is_sent_later(store, tmp_path, caplog, monkeypatch):
    run = MlflowRun(tmp_path / "run", tracking_uri=sqlite_uri(store))
    with monkeypatch.context() as patch:
        patch.setattr(MlflowReceiver, "__call__", _unreachable)
        run.log_metrics({"success": 0.5, "loss": 1.0}, step=1)
        run.log_artifact(tmp_path / "run" / MLFLOW_FILE)
        run.finish("FAILED", **QUICKLY)
    assert "3 values and 1 artifacts wait in" in caplog.text
    assert f"pld-ray send {tmp_path / 'run'}" in caplog.text
    assert logged(run).info.status == "RUNNING"

    moved = shutil.move(tmp_path / "run", tmp_path / "moved")
    report = send_left(moved)
    assert (report.num_sent, report.num_left) == (4, 0)
    assert logged(run).info.status == "FAILED"
    assert history(run, "success") == [(1, 0.5)]
    assert [a.path for a in client_of(run).list_artifacts(run.run_id)] == [MLFLOW_FILE]
    assert send_left(moved).num_sent == 0


def _unreachable(receiver, records) -> None:
    raise OSError("away")


def test_a_sweep_is_one_run_that_its_trials_are_shown_under(store, tmp_path):
    folder = tmp_path / "grid"
    uri = sqlite_uri(store)
    sweep = open_sweep_run(folder, "grid", uri, "sweeps", {"num_samples": 2})
    with MlflowRun(folder / "t0", tracking_uri=uri, parent_run_id=sweep.run_id) as trial:
        pass
    sweep.log_metrics({"best/success": 0.5}, step=1)
    sweep.finish("KILLED")
    again = open_sweep_run(folder, "grid", uri, "sweeps", {"num_samples": 2})
    assert again.run_id == sweep.run_id
    again.log_metrics({"best/success": 0.7}, step=1)  # a repeated trial
    again.log_metrics({"best/success": 0.8}, step=2)
    again.finish()
    data = logged(again).data
    assert data.params == {"sweep.num_samples": "2"}
    assert (data.tags["pld_ray.kind"], data.tags["sweep"]) == ("sweep", "grid")
    assert history(again, "best/success") == [(1, 0.5), (2, 0.8)]
    assert logged(trial).data.tags["mlflow.parentRunId"] == sweep.run_id


def test_two_processes_make_one_new_store_silently(tmp_path):
    """Table creation and migrations print many INFO lines where the root logger shows INFO."""
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO);"
        "from pld_ray.tracking.mlflow_run import MlflowRun;"
        "assert 'mlflow' not in sys.modules and 'matplotlib' not in sys.modules;"
        f"run = MlflowRun(sys.argv[1], tracking_uri={sqlite_uri(tmp_path)!r});"
        "run.log_metrics({'a': 1}, step=1); run.finish();"
        "assert __import__('mlflow').active_run() is None"
    )
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, name], cwd=tmp_path, env=env, **pipes)
        for name in ("a", "b")
    ]
    assert [process.communicate() for process in processes] == [("", "")] * 2
    assert [process.returncode for process in processes] == [0, 0]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".mlflow.db.lock", "a", "b", "mlflow.db"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "metrics.jsonl",
        "mlflow_outbox.jsonl",
        MLFLOW_FILE,
        "mlflow_sent.json",
    ]
