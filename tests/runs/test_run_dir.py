"""One process at a time works in a run's folder."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.errors import UserError
from pld_ray.files import lock as locks
from pld_ray.files.atomic import undone_unless
from pld_ray.files.lock import LOCK_FILE, STALE_S, Owner, lock_owner, process_start
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.reading import wall_before
from pld_ray.runs.run_dir import RunDir, older_checkpoint, run_of_checkpoint
from pld_ray.runs.status import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    is_held,
    read_status,
    write_status,
)
from pld_ray.tracking.logfile import close_logging, setup_logging
from pld_ray.tracking.mlflow_record import write_record


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def claim_as(folder, pid, host=None, **more):
    content = {"pid": pid, "host": host or socket.gethostname(), **more}
    (folder / LOCK_FILE).write_text(json.dumps(content))


def test_a_living_process_keeps_its_folder_and_a_dead_one_does_not(tmp_path, sleeper):
    run = RunDir(tmp_path)
    claim_as(tmp_path, sleeper.pid)
    with pytest.raises(ConfigError, match=f"in use by process {sleeper.pid}"):
        run.claim()
    sleeper.kill()
    sleeper.wait()
    run.claim()
    assert lock_owner(tmp_path / LOCK_FILE) == Owner(os.getpid(), socket.gethostname())
    run.claim()  # its own again
    run.release()
    assert lock_owner(tmp_path / LOCK_FILE) is None
    run.release()


def test_a_number_that_was_given_out_again_does_not_keep_a_folder(tmp_path, sleeper):
    claim_as(tmp_path, sleeper.pid, started=process_start(sleeper.pid))
    with pytest.raises(ConfigError, match=f"in use by process {sleeper.pid}: wait"):
        RunDir(tmp_path).claim()
    assert is_held(tmp_path)
    claim_as(tmp_path, sleeper.pid, started=process_start(os.getpid()))  # another one's beginning
    assert not is_held(tmp_path)
    RunDir(tmp_path).claim()


@pytest.mark.parametrize("content", ["", "{", '{"pid": "x", "host": 3}', "[]"])
def test_a_damaged_lock_holds_nobody_up(tmp_path, content):
    (tmp_path / LOCK_FILE).write_text(content)
    RunDir(tmp_path).claim()


def test_the_process_of_another_machine_keeps_the_folder_while_it_touches_its_lock(tmp_path):
    lock = tmp_path / LOCK_FILE
    claim_as(tmp_path, 1, host="elsewhere")
    with pytest.raises(ConfigError, match=r"process 1 of elsewhere: .*died frees .* after 60 s"):
        RunDir(tmp_path).claim()
    assert is_held(tmp_path)
    assert not list(tmp_path.glob(".clock-*"))
    ago = lock.stat().st_mtime - STALE_S - 5
    os.utime(lock, (ago, ago))
    assert not is_held(tmp_path)
    RunDir(tmp_path).claim()
    assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_lock_is_touched_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    run, lock = RunDir(tmp_path), tmp_path / LOCK_FILE
    run.claim()
    for _ in range(2):
        os.utime(lock, (0, 0))
        deadline = time.monotonic() + 30
        while lock.stat().st_mtime < STALE_S:
            assert time.monotonic() < deadline, "nobody touches the lock"
            time.sleep(0.005)
    run.release()


def test_a_lock_that_another_host_took_over_is_its_own(tmp_path, monkeypatch):
    """This process was suspended for a minute, and its run was continued elsewhere."""
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    held = locks.FolderLock(tmp_path)
    assert held.claim() is None
    beats = next(t for t in threading.enumerate() if t.name == f"beats of {held.path}")
    elsewhere = json.dumps({"pid": 1, "host": "elsewhere", "started": None})
    held.path.write_text(elsewhere)
    beats.join(30)
    assert not beats.is_alive()  # nobody keeps the other's lock fresh
    held.release()
    assert held.path.read_text() == elsewhere


def test_a_driver_that_holds_the_folder_lets_those_work_that_it_started(tmp_path):
    driver = locks.FolderLock(tmp_path)
    assert driver.claim() is None
    claim = (
        "import os, pathlib, sys; from pld_ray.files.lock import FolderLock, Owner, this_process; "
        "lock = FolderLock(pathlib.Path(sys.argv[1])); us = Owner(os.getppid(), sys.argv[2]); "
        "print(lock.claim(), lock.claim(driver=us)); lock.release()"
    )
    command = [sys.executable, "-c", claim, str(tmp_path), socket.gethostname()]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.split("\n") == [f"process {os.getpid()} None", ""]
    assert lock_owner(driver.path) == locks.this_process()
    driver.release()


def test_a_file_system_that_fails_once_does_not_end_the_beats_of_a_lock(tmp_path, monkeypatch):
    beats, enough = [], threading.Event()

    def utime(path, *times):
        beats.append(path)
        if len(beats) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        enough.set()

    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    monkeypatch.setattr(locks.os, "utime", utime)
    run = RunDir(tmp_path)
    run.claim()
    assert enough.wait(30), "no beat after the one that failed"
    run.release()


def test_a_folder_says_what_its_run_is_doing(tmp_path, sleeper):
    run = RunDir(tmp_path)
    assert read_status(tmp_path) is None
    with run.work():
        assert read_status(tmp_path).state == RUNNING
        run.set_status(FINISHED)
    assert (read_status(tmp_path).state, read_status(tmp_path).pid) == (FINISHED, os.getpid())
    with pytest.raises(ZeroDivisionError), run.work():
        raise ZeroDivisionError("by a bug\nof ours")
    status = read_status(tmp_path)
    assert (status.state, status.reason) == (FAILED, "ZeroDivisionError: by a bug")
    with pytest.raises(KeyboardInterrupt), run.work():
        raise KeyboardInterrupt
    assert read_status(tmp_path).state == INTERRUPTED
    claim_as(tmp_path, sleeper.pid)
    assert read_status(tmp_path).state == RUNNING  # it has begun, and has not said so yet
    write_status(tmp_path, RUNNING)
    sleeper.kill()
    sleeper.wait()
    assert read_status(tmp_path).state == INTERRUPTED


@pytest.mark.parametrize("content", ["", "[]", '{"state": "dancing"}', '{"state": ["failed"]}'])
def test_a_damaged_status_is_none(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    assert read_status(tmp_path) is None


def test_a_second_process_waits_for_the_first_and_only_the_first_frees_the_folder(tmp_path):
    first, second = locks.FolderLock(tmp_path), locks.FolderLock(tmp_path)
    assert first.claim() is None
    assert second.claim() is None  # this process has it
    assert second.claim(alone=True) == Owner(os.getpid(), socket.gethostname())
    second.release()
    assert is_held(tmp_path)
    first.release()
    assert not is_held(tmp_path)


def checkpoint(run, name, env_steps):
    folder = run.checkpoints / name
    folder.mkdir(parents=True)
    (folder / PROGRESS_FILE).write_text(json.dumps({"env_steps": env_steps}))
    return folder


def test_what_a_kill_while_saving_left_is_gone_at_the_next_start(tmp_path):
    run = RunDir(tmp_path)
    for name in (".partial-step_000000200", "best", ".retired-best", ".retired-final"):
        checkpoint(run, name, 100)
    (run.checkpoints / "best" / "new").touch()
    run.claim()
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["best", "final"]
    assert (run.checkpoints / "best" / "new").exists()
    run.release()


def test_checkpoints_beyond_the_one_gone_on_from_are_hidden_and_never_pruned_for(tmp_path):
    run = RunDir(tmp_path)
    old, newer = checkpoint(run, "step_1", 1), checkpoint(run, "step_3", 3)
    (checkpoint(run, "step_2", 2) / PROGRESS_FILE).write_text("{")  # it does not tell
    assert [p.name for p in run.find_checkpoints()] == ["step_2", "step_3", "step_1"]
    assert older_checkpoint(newer) == old
    assert run.checkpoint_named("step_3") == newer
    with pytest.raises(ConfigError, match=r"--checkpoint=step_9: .* holds step_2, step_3, step_1"):
        run.checkpoint_named("step_9")
    run.go_on_from(old)
    assert run.find_checkpoints() == [old]
    assert {p.name for p in run.checkpoints.iterdir()} == {
        "step_1",
        ".aside-step_2",
        ".aside-step_3",
    }
    run.prune(1)
    assert old.exists()


def test_who_gives_a_run_for_its_checkpoint_or_the_reverse_is_told_the_other(tmp_path):
    run = RunDir(tmp_path)
    run.create(TrainConfig())
    with pytest.raises(ConfigError, match="give a folder that `pld-ray train` wrote under check"):
        run_of_checkpoint(tmp_path)
    newest = checkpoint(run, "final", 2)
    with pytest.raises(ConfigError, match=f"residual_sac.json is missing; give {newest}$"):
        run_of_checkpoint(tmp_path)
    best = checkpoint(run, "best", 1)
    with pytest.raises(ConfigError, match=f"residual_sac.json is missing; give {best}$"):
        run_of_checkpoint(tmp_path)
    assert run_of_checkpoint(best).path == run.path
    with pytest.raises(ConfigError, match=f"best holds no run: .*; it lies in the run {tmp_path}:"):
        RunDir(best).load_config()
    with pytest.raises(ConfigError, match=r"holds no run: config\.yaml is missing$"):
        RunDir(tmp_path.parent).load_config()


def test_what_a_refusal_says_can_be_pasted_where_a_folder_s_name_has_a_space(tmp_path):
    run = RunDir(tmp_path / "a run")
    run.create(TrainConfig())
    best = checkpoint(run, "best", 1)

    def full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work():
        with run.disk_errors():
            full(run.path)

    for refused, said in (
        (lambda: run.save_checkpoint(full, "final", {}), f"--resume='{run.path}'"),
        (work, f"--resume='{run.path}'"),
        (run.check_new, f"--resume='{run.path}'"),
        (lambda: run_of_checkpoint(run.path), f"give '{best}'"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            refused()


def fail_to_start(run, begun):
    with undone_unless(run.path, lambda: run.has_begun):
        run.claim()
        (run.path / "config.yaml").write_text("{}")
        if begun:
            checkpoint(run, "best", 1)
        raise ZeroDivisionError


@pytest.mark.parametrize("there", ["nothing", "a folder", "files"])
def test_a_start_that_fails_takes_back_what_it_made_and_nothing_else(tmp_path, there):
    run = RunDir(tmp_path / "deep" / "run")
    if there != "nothing":
        run.path.mkdir(parents=True)
    if there == "files":
        (run.path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for begun in (False, True):
        with pytest.raises(ZeroDivisionError):
            fail_to_start(run, begun)
        if not begun:
            assert sorted(tmp_path.rglob("*")) == before
    assert (run.path / "config.yaml").exists()
    run.release()


@pytest.mark.parametrize("name", ["file", "file/run", "x" * 300])
def test_an_output_dir_that_cannot_be_a_folder_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"output_dir=.*(is no folder|too long); choose another"):
        RunDir(tmp_path / name).check_new()


def test_a_folder_that_holds_something_of_a_run_is_no_new_one_s(tmp_path):
    for name in ("train.sbatch", "given.yaml", "lost+found"):
        (tmp_path / name).touch()
    RunDir(tmp_path).check_new()
    for name in ("checkpoints", "metrics.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(
        ConfigError, match=r"of another run \(metrics\.jsonl, checkpoints\); choose"
    ):
        RunDir(tmp_path).check_new()


def test_a_run_begins_where_another_was_killed_while_it_started(tmp_path):
    run = RunDir(tmp_path)
    run.claim()
    run.set_status(RUNNING)
    setup_logging(tmp_path)
    close_logging()
    write_record(tmp_path, "sqlite:///mlflow.db", "1" * 32)
    (tmp_path / ".status.json-0123abcd").touch()
    (tmp_path / "slurm-7.out").touch()  # what a shell has opened for the command's output
    RunDir(tmp_path).check_new()
    run.release()


def test_offline_checkpoints_are_newer_by_their_updates(tmp_path):
    run = RunDir(tmp_path)
    for name, updates in (("offline_2", 200), ("offline_1", 100), ("best", 100)):
        folder = run.checkpoints / name
        folder.mkdir(parents=True)
        (folder / PROGRESS_FILE).write_text(json.dumps({"env_steps": 0, "updates": updates}))
    offline_1, best = run.checkpoints / "offline_1", run.checkpoints / "best"
    assert run.latest_checkpoint() == run.checkpoints / "offline_2"
    run.go_on_from(offline_1)
    assert set(run.find_checkpoints()) == {offline_1, best}


def test_what_a_run_has_taken_is_that_of_all_its_lives(tmp_path):
    assert wall_before(tmp_path) == 0.0
    row = {"env_steps": 10, "time/wall_s": 50.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert wall_before(tmp_path) == 50.0  # killed: what it trained is known
    (tmp_path / "summary.json").write_text(json.dumps({"total_wall_s": 80.5}))
    assert wall_before(tmp_path) == 80.5
