"""docs/operations.md, command by command, on three nodes of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import psutil
import pytest
import ray
import yaml
from browser import find_browser, visit
from mlflow.tracking import MlflowClient

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

TIME_LIMIT_S = 780.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("", 0))
        return [free.getsockname()[1] for free in sockets]


def end(pids: list[int], grace_s: float = 30.0) -> None:
    """Ask processes and all they started to end, then make them."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class Walk:
    """The page's blocks run in one shell, and what they left."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path) -> None:
        self.root, self.home, self.shared = root, folder / "home", folder / "shared"
        self.home.mkdir()
        self.shared.mkdir()
        self.head = ray.util.get_node_ip_address()
        self.gcs_port, self.dashboard_port, self.mlflow_port = free_ports(3)
        self.log, self.goodbye = folder / "log", folder / "goodbye"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))},
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "SCRATCH": str(folder / "r"),
            "OMP_NUM_THREADS": "1",
            "HEAD": self.head,
            "SHARED": str(self.shared),
            "GCS_PORT": str(self.gcs_port),
            "DASHBOARD_PORT": str(self.dashboard_port),
            "MLFLOW_PORT": str(self.mlflow_port),
        }

    def run(self, blocks, log: pathlib.Path) -> int:
        """Exit status of the shell that ran every block, one after the other."""
        script = "set -euo pipefail\n"
        for block in blocks:
            script += f"echo '=== docs/operations.md:{block.line}'\n{block.code}\n"
        with log.open("w") as output:
            shell = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return shell.wait(timeout=TIME_LIMIT_S)
            except subprocess.TimeoutExpired:
                return 124
            finally:
                end([shell.pid], grace_s=2.0)

    def pids(self) -> dict[str, int]:
        """What the blocks left running: name -> process."""
        return {path.stem: int(path.read_text()) for path in self.home.glob("*.pid")}

    def secrets(self) -> list[str]:
        """The values that must not be found anywhere."""
        lines = (self.home / ".pld-ray.env").read_text().splitlines()
        values = dict(line.removeprefix("export ").split("=", 1) for line in lines)
        token = (self.home / ".ray" / "auth_token").read_text().strip()
        return [values["MLFLOW_TRACKING_PASSWORD"], token]


@pytest.fixture(scope="module")
def walk(root, blocks):
    """The whole page, run once."""
    if importlib.util.find_spec("flask_wtf") is None:
        pytest.skip("the tracking server's logins need flask-wtf (docker/requirements.txt)")
    missing = [tool for tool in ("bash", "curl", "git", "openssl") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the page's commands need {', '.join(missing)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ops", dir="/tmp"))  # short: Ray's sockets
    made = Walk(root, folder)
    try:
        *steps, _ = [block for block in blocks if block.not_tested is None]
        status = made.run(steps, made.log)
        assert status == 0, f"exit status {status}\n{made.log.read_text()[-6000:]}"
        yield made
    finally:
        end(list(made.pids().values()))
        shutil.rmtree(folder, ignore_errors=True)


def test_the_page_leads_to_a_sweep_on_three_nodes(walk):
    summary = json.loads((walk.shared / "runs/smoke/summary.json").read_text())
    assert summary["num_finished"] == summary["num_trials"] == 4
    assert summary["best"]["held_success"] >= 0.9
    assert walk.log.read_text().count("simulation") >= 2  # `ray status` shows the resource


def test_a_job_that_was_stopped_went_on(walk):
    log = walk.log.read_text()
    assert "Job 'smoke' was stopped" in log
    assert "SIGTERM received" not in log  # the head of a native stack trace
    assert "Job 'smoke-2' succeeded" in log


@pytest.fixture(scope="module")
def runs(walk):
    """Every MLflow run of the page's sweep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", walk.secrets()[0])
        client = MlflowClient(f"http://{walk.head}:{walk.mlflow_port}")
        experiments = [e.experiment_id for e in client.search_experiments()]
        yield client.search_runs(experiments)


def test_the_tracking_server_has_a_run_for_the_sweep_and_each_trial(root, runs):
    kinds = sorted(run.data.tags["pld_ray.kind"] for run in runs)
    assert kinds == ["sweep", *["trial"] * 4]
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    commit = done.stdout.strip() or "unknown"
    assert {run.data.tags["mlflow.source.git.commit"] for run in runs} == {commit}
    unfinished = {r.info.run_name: r.info.status for r in runs if r.info.status != "FINISHED"}
    assert unfinished == {}


@contextlib.contextmanager
def tunnel(host: str, port: int):
    """What `ssh -L` does: a port of this machine whose bytes come out at another address."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self):
            with socket.create_connection((host, port)) as there:
                back = threading.Thread(target=pump, args=(there, self.request))
                back.start()
                pump(self.request, there)
                back.join()

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


RUNS = '[...document.querySelectorAll("[role=row] a")].map((link) => link.textContent.trim())'


@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
@pytest.mark.parametrize("way", ["directly", "tunnel"])
def test_a_browser_sees_the_sweep_in_the_table_of_runs(walk, runs, tmp_path, way):
    experiment = runs[0].info.experiment_id
    with tunnel(walk.head, walk.mlflow_port) as port:
        place = f"{walk.head}:{walk.mlflow_port}" if way == "directly" else f"localhost:{port}"
        seen = visit(
            f"http://{place}/#/experiments/{experiment}/runs",
            1400,
            [RUNS],
            tmp_path / "profile",
            tmp_path / "page.png",
            login=("admin", walk.secrets()[0]),
            until=f"{RUNS}.includes('smoke')",
        )
    assert "smoke" in seen.results[0]
    assert [answer for answer in seen.refused if answer[0] == 403] == []


def test_the_tracking_server_asks_who_is_there(walk):
    url = f"http://{walk.head}:{walk.mlflow_port}/api/2.0/mlflow/experiments/search?max_results=1"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=30)


def test_the_dashboard_asks_for_the_token_and_listens_on_loopback_alone(walk):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{walk.dashboard_port}/api/jobs/", timeout=30)
    if walk.head == "127.0.0.1":
        pytest.skip("this machine has no other address than 127.0.0.1")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((walk.head, walk.dashboard_port), timeout=30)


def test_no_secret_is_in_runs_jobs_folders_or_logs(walk, runs):
    secrets = walk.secrets()
    request = urllib.request.Request(f"http://127.0.0.1:{walk.dashboard_port}/api/jobs/")
    request.add_header("Authorization", f"Bearer {secrets[1]}")
    jobs = urllib.request.urlopen(request, timeout=30).read().decode()
    assert "smoke-2" in jobs
    places = {"the dashboard's jobs": jobs, "the page's output": walk.log.read_text()}
    for run in runs:
        places[f"MLflow run {run.info.run_name}"] = json.dumps(run.to_dictionary())
    for path in (walk.shared / "runs").rglob("*"):
        if path.is_file():
            places[str(path)] = path.read_bytes().decode(errors="replace")
    for path in walk.home.glob("*.log"):
        places[path.name] = path.read_text()
    leaks = [place for place, text in places.items() if any(s in text for s in secrets)]
    assert leaks == []
    configs = [yaml.safe_load(path.read_text()) for path in walk.shared.rglob("config.yaml")]
    assert len(configs) >= 4
    assert all("PASSWORD" not in json.dumps(config) for config in configs)


def test_the_last_block_ends_what_the_others_started(walk, blocks):
    processes = {name: psutil.Process(pid) for name, pid in walk.pids().items()}
    assert set(processes) == {"mlflow", "ray-head", "ray-simulation", "ray-learning"}
    started = [child for p in processes.values() for child in p.children(recursive=True)]
    assert walk.run(blocks[-1:], walk.goodbye) == 0, walk.goodbye.read_text()
    _, alive = psutil.wait_procs([*processes.values(), *started], timeout=120)
    assert [process.name() for process in alive] == []
