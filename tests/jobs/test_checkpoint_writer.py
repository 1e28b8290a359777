"""Checkpoints written while the policy learns: on a full disk, when it is stopped, when it dies."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from sharded_data import write_dataset

from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.files.manifest import check_manifest
from pld_ray.jobs.checkpoint_writer import CheckpointWriter
from pld_ray.jobs.finetune import finetune
from pld_ray.jobs.finetune_loop import FinetuneLoop
from pld_ray.jobs.loop_state import LoopState
from pld_ray.jobs.offline_stage import OfflineStage
from pld_ray.runs.run_dir import PARTIAL, RunDir, RunError
from pld_ray.runs.status import FAILED, FINISHED, INTERRUPTED, read_status
from pld_ray.sharded.ranks import ALONE

SMALL = [
    *("--algorithm.batch_size=4", "--evaluation.interval_steps=0"),
    *("--checkpoint.interval_steps=1", "--checkpoint.keep=3", "--tracking.enabled=false"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "data"
    write_dataset(root, (12, 9, 7))
    return root


@pytest.fixture(scope="module")
def straight(dataset, tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    finetune(configured(dataset, folder))
    return folder


def settings(dataset: pathlib.Path, folder: pathlib.Path, updates: int = 12) -> list[str]:
    return [*SMALL, f"--total_steps={updates}", f"--dataset=[{dataset}]", f"--output_dir={folder}"]


def configured(dataset: pathlib.Path, folder: pathlib.Path) -> FinetuneConfig:
    return load_config(FinetuneConfig, settings(dataset, folder))


def check_what_is_left(folder: pathlib.Path) -> None:
    """Each checkpoint is whole, and the newest ones are there."""
    found = RunDir(folder).find_checkpoints()
    assert found
    assert all(check_manifest(path) for path in found)


def check_it_goes_on(folder: pathlib.Path, straight: pathlib.Path) -> None:
    """Resumed, the run ends as the one that nobody disturbed."""
    finetune(RunDir(folder).load_config(FinetuneConfig), folder)
    assert read_status(folder).state == FINISHED
    for name in ("policy/model.safetensors", "components/optimizer.safetensors"):
        one, other = (run / "checkpoints/final" / name for run in (straight, folder))
        assert one.read_bytes() == other.read_bytes(), name
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_full_disk_is_one_sentence_and_the_last_whole_checkpoint(dataset, straight, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = tmp_path / "run"

    def fill_the_disk(samples: int) -> None:
        if (folder / "checkpoints/step_000000003").is_dir():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, hard))

    try:
        with pytest.raises(
            RunError, match=r"cannot write checkpoint .*step_0+\d+: File too la"
        ) as e:
            finetune(configured(dataset, folder), on_samples=fill_the_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(e.value)
    assert f"; the last good checkpoint is {folder}/checkpoints/step_" in str(e.value)
    status = read_status(folder)
    assert status.state == FAILED
    assert str(e.value) in status.reason
    check_what_is_left(folder)
    check_it_goes_on(folder, straight)


def test_ctrl_c_twice_during_a_write_leaves_whole_checkpoints(dataset, straight, tmp_path):
    folder = tmp_path / "run"

    def abort(samples: int) -> None:
        if (folder / "checkpoints/step_000000002").is_dir():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        finetune(configured(dataset, folder), on_samples=abort)
    assert read_status(folder).state == INTERRUPTED
    assert not list((folder / "checkpoints").glob(".*"))  # it has waited for the write
    check_what_is_left(folder)
    check_it_goes_on(folder, straight)


def test_sigkill_during_a_write_leaves_the_older_checkpoint(dataset, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pld_ray.cli", "finetune", *settings(dataset, folder, 100_000)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    checkpoints = folder / "checkpoints"
    try:
        while True:
            assert process.poll() is None
            time.sleep(0.005)  # for another process
            if not list(checkpoints.glob("step_*")):
                continue
            process.send_signal(signal.SIGSTOP)
            # until all of its threads stand still: what is seen then is what a kill leaves
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if list(checkpoints.glob(f"{PARTIAL}*")):
                break
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
        process.wait()
    assert list(checkpoints.glob(f"{PARTIAL}*"))
    check_what_is_left(folder)
    assert read_status(folder).state == INTERRUPTED
    RunDir(folder).claim()
    assert not list(checkpoints.glob(".*"))


def test_training_does_not_wait_for_a_write_and_the_end_does():
    written, go_on = [], threading.Event()

    def write() -> None:
        go_on.wait()
        written.append(1)

    with CheckpointWriter(ALONE) as writer:
        writer.begin(write)
        assert not written
        go_on.set()
    assert written


def test_a_write_that_failed_is_told_in_one_sentence_and_once():
    written = []

    def fail(error: Exception) -> None:
        raise error

    with CheckpointWriter(ALONE) as writer:
        for error, words in (
            (RunError("the disk is full"), "^the disk is full$"),
            (KeyError("weights"), "^a checkpoint cannot be written: KeyError: 'weights'$"),
        ):
            writer.begin(functools.partial(fail, error))
            with pytest.raises(RunError, match=words):
                writer.settle()
            writer.settle()  # nothing is under way any more
        writer.begin(lambda: written.append(1))
        writer.settle()
    assert written


def test_what_the_disk_refuses_the_first_rank_ends_the_run_on_all(tmp_path):
    def append(row):
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    run, shared = RunDir(tmp_path), []
    run.journal = SimpleNamespace(append=append)
    first = SimpleNamespace(first=True, share=lambda error: shared.append(error) or error)
    second = SimpleNamespace(first=False, share=lambda _: shared[0])
    for ranks in (first, second):
        loop = object.__new__(FinetuneLoop)
        loop.trainer, loop.run_dir = SimpleNamespace(ranks=ranks, updates=3), run
        loop.state = SimpleNamespace(train_wall_s=0.0)
        with pytest.raises(RunError, match=r"^metrics.jsonl cannot be written: .* Free space"):
            loop.record({"loss": 1.0})


def test_ranks_give_their_parts_though_the_first_one_s_folder_cannot_be_made(tmp_path):
    """Else those that give theirs would wait for it for hours."""
    run, done = RunDir(tmp_path), {}
    run.checkpoints.touch()
    for rank in (0, 1):
        calls = done[rank] = []
        stage = object.__new__(OfflineStage)
        stage.run_dir, stage.config = run, ACRLPDTrainConfig()
        stage.progress, stage.state = SimpleNamespace(updates=5), LoopState()
        share = functools.partial(lambda calls, error: calls.append("share") or error, calls)
        stage.ranks = SimpleNamespace(first=rank == 0, share=share)
        get = functools.partial(lambda calls, components: calls.append("parts") or {}, calls)
        stage.learner = SimpleNamespace(get_state=get)
        with pytest.raises(RunError) if rank == 0 else contextlib.nullcontext():
            stage.save()
    assert done[0] == done[1] == ["parts", "share"]
