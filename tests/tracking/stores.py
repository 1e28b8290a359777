"""Real MLflow stores: a sqlite file, and an `mlflow server` on a port that outlives it."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

START_S = 120
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
HEAD = "127.0.0.2"
"""Loopback, but no `localhost` to MLflow, which trusts that name whatever it is told."""


def documented_access(head: str, port: int) -> list[str]:
    """The options of docs/operations.md that say who may talk to the server."""
    text = PAGE.read_text().replace("$HEAD", head).replace("$MLFLOW_PORT", str(port))
    found = re.findall(r'(--(?:allowed-hosts|cors-allowed-origins)=)"(.*?)"', text)
    return ["".join(option) for option in found]


def hold_port(host: str) -> socket.socket:
    """A port that nobody else is given while this is open; a server that is told it may listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


class MlflowServer:
    """An `mlflow server` process on sqlite, to be killed and started again."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.held = hold_port(HEAD)  # while the server is down too
        self.port = self.held.getsockname()[1]
        self.uri = f"http://{HEAD}:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {
            "backend-store-uri": f"sqlite:///{self.folder / 'mlflow.db'}",
            "artifacts-destination": str(self.folder / "artifacts"),
            "host": HEAD,
            "port": str(self.port),
            "workers": "1",
        }
        command = [sys.executable, "-m", "mlflow", "server"]
        command += [f"--{name}={value}" for name, value in options.items()]
        command += documented_access(HEAD, self.port)
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        deadline = time.monotonic() + START_S
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, "mlflow server does not answer"
            time.sleep(0.1)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    """One server for all tests; making the tables of a store takes seconds."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow_server"))
    server.start()
    yield server
    server.kill()
    server.held.close()


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The folder of one sqlite store for all tests."""
    return tmp_path_factory.mktemp("mlflow_store")
