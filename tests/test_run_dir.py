"""One process at a time works in a run's folder."""

import json
import os
import socket
import subprocess
import sys

import pytest

from pld_ray.config import ConfigError
from pld_ray.run_dir import LOCK_FILE, RunDir


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def claim_as(folder, pid, host=None):
    content = {"pid": pid, "host": host or socket.gethostname()}
    (folder / LOCK_FILE).write_text(json.dumps(content))


def test_a_living_process_keeps_its_folder_and_a_dead_one_does_not(tmp_path, sleeper):
    run = RunDir(tmp_path)
    claim_as(tmp_path, sleeper.pid)
    with pytest.raises(ConfigError, match=f"in use by process {sleeper.pid}"):
        run.claim()
    sleeper.kill()
    sleeper.wait()
    run.claim()
    assert run.owner() == os.getpid()
    run.claim()  # its own again
    run.release()
    assert run.owner() is None
    run.release()


@pytest.mark.parametrize("content", ["", "{", '{"pid": "x", "host": 3}', "[]"])
def test_a_damaged_lock_holds_nobody_up(tmp_path, content):
    (tmp_path / LOCK_FILE).write_text(content)
    RunDir(tmp_path).claim()


def test_the_process_of_another_machine_is_not_asked_after(tmp_path):
    claim_as(tmp_path, 1, host="elsewhere")
    RunDir(tmp_path).claim()
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
