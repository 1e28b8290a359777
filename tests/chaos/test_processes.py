"""Processes that are killed: the driver, the tracking server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from chaos import POINT_RUN, progress, wait_for
from mlflow.tracking import MlflowClient

from pld_ray.cli import main


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.chaos
def test_a_killed_driver_loses_nothing_but_the_time_since_its_checkpoint(start_run, tmp_path):
    folder = tmp_path / "run"
    common = ["--runners.num_env_runners=1", "--tracking.enabled=false"]
    first = start_run(*POINT_RUN, *common, f"--output_dir={folder}", "--total_steps=100000000")
    wait_for(lambda: len(list((folder / "checkpoints").glob("step_*"))) >= 2, "two checkpoints")
    first.send_signal(signal.SIGKILL)
    first.wait()
    last = max(progress(folder, p.name)["env_steps"] for p in folder.glob("checkpoints/step_*"))
    second = start_run(f"--resume={folder}", f"--total_steps={last + 1500}")
    assert second.wait(timeout=300) == 0
    counts = progress(folder, "final")
    assert counts["env_steps"] >= last + 1500
    assert counts["updates"] + counts["update_debt"] == pytest.approx(0.1 * counts["stored_steps"])
    steps = [row["env_steps"] for row in rows(folder) if "train/success_rate" in row]
    assert steps == sorted(set(steps)), "a step was recorded twice"


class TrackingServer:
    """A real `mlflow server` on sqlite."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"]
        command += ["--default-artifact-root", str(self._folder / "artifacts")]
        log = (self._folder / "server.log").open("a")
        self.process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        wait_for(self.answers, "the tracking server's start")

    def answers(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.uri}/health", timeout=1).status == 200
        return False

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    made = TrackingServer(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.mark.chaos
def test_a_tracking_server_that_goes_and_returns_has_every_point_once(server, start_run, tmp_path):
    folder = tmp_path / "run"
    run = start_run(
        *POINT_RUN,
        "--runners.num_env_runners=1",
        f"--output_dir={folder}",
        f"--tracking.uri={server.uri}",
        "--total_steps=100000000",
    )
    wait_for(lambda: (folder / "metrics.jsonl").exists() and len(rows(folder)) > 3, "learning")
    server.kill()
    before = len(rows(folder))
    wait_for(lambda: len(rows(folder)) > before + 3, "training without a server")
    during = rows(folder)[-1]["env_steps"]
    server.start()
    client = MlflowClient(server.uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "pld-ray"]
    (logged,) = client.search_runs([experiment.experiment_id])

    def history():
        return client.get_metric_history(logged.info.run_id, "train/success_rate")

    wait_for(lambda: max(p.step for p in history()) >= during, "what was missed to be sent")
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=300) == 0
    points = history()
    wanted = [row["env_steps"] for row in rows(folder) if row.get("train/success_rate") is not None]
    assert sorted(p.step for p in points) == sorted(wanted)


@pytest.mark.chaos
def test_the_cli_says_what_a_cluster_lacks(tmp_path, capsys):
    code = main(
        [
            "train",
            *POINT_RUN,
            f"--output_dir={tmp_path / 'run'}",
            "--tracking.enabled=false",
            "--runners.num_learners=1",
            "--runners.num_gpus_per_learner=1",
        ]
    )
    assert code == 2
    assert "no room for 1 x learner (1 CPU, 1 GPU)" in capsys.readouterr().err
