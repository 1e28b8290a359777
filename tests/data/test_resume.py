"""A conversion that is killed at any moment goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from aloha_files import write_episode

from pld_ray.data.aloha_file import Layout
from pld_ray.data.aloha_part import Settings
from pld_ray.data.conversion import convert
from pld_ray.data.conversion_progress import Steps
from pld_ray.data.workers import run_jobs

SETTINGS = Settings("lab/fold", "fold the box", mode="video")


class KillSelf(Steps):
    """Ends the process hard at its n-th sign of life."""

    def __init__(self, moment):
        self.moment = moment

    def note(self, text):
        self.tick()

    def tick(self):
        self.moment -= 1
        if self.moment < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def phase(self, *args):
        @contextlib.contextmanager
        def ticking():
            yield lambda amount: self.tick()
            self.tick()

        return ticking()


def convert_and_die(folder, root, moment):
    convert(folder, root, SETTINGS, Layout(), 1, steps=KillSelf(moment))


def killed(folder, root, moment, after_s=None):
    """Exit code of a conversion that is killed at a moment or after some time."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=convert_and_die, args=(folder, root, moment))
    process.start()
    process.join(after_s)
    process.kill()
    process.join()
    return process.exitcode


def contents(root):
    """Every file but the progress, which names the folders."""
    files = {p.relative_to(root).as_posix(): p for p in sorted(root.rglob("*")) if p.is_file()}
    return {name: p.read_bytes() for name, p in files.items() if "progress" not in name}


def test_killed_at_every_step_the_dataset_is_the_undisturbed_one(tmp_path):
    for k in range(3):
        write_episode(tmp_path / f"in/score_5/episode_{k}.hdf5", 4 + k, k)
    convert(tmp_path / "in", tmp_path / "whole", SETTINGS, Layout(), 1)
    root = tmp_path / "out"
    codes = [killed(tmp_path / "in", root, moment) for moment in range(14)]
    assert codes[0] == -9
    assert codes[-1] == 0
    assert contents(root) == contents(tmp_path / "whole")
    assert not (root / ".conversion").exists()


def test_killed_at_random_times(tmp_path):
    for k in range(4):
        write_episode(tmp_path / f"in/score_1/episode_{k}.hdf5", 8, k)
    convert(tmp_path / "in", tmp_path / "whole", SETTINGS, Layout(), 1)
    draw = random.Random(0)
    root = tmp_path / "out"
    for _ in range(5):
        killed(tmp_path / "in", root, 1000, after_s=draw.uniform(0.02, 0.4))
    outcome = convert(tmp_path / "in", root, SETTINGS, Layout(), 1)
    assert (outcome.num_episodes, outcome.num_frames) == (4, 32)
    assert contents(root) == contents(tmp_path / "whole")


def test_a_file_that_has_changed_since_is_converted_again(tmp_path):
    for k in range(2):
        write_episode(tmp_path / f"in/score_5/episode_{k}.hdf5", 4, k)
    assert killed(tmp_path / "in", tmp_path / "out", 5) == -9
    parts = sorted(path.name for path in (tmp_path / "out/.conversion/parts").iterdir())
    write_episode(tmp_path / "in/score_5/episode_0.hdf5", 9, 0)
    outcome = convert(tmp_path / "in", tmp_path / "out", SETTINGS, Layout(), 1)
    assert parts
    assert outcome.num_frames == 13
    saved = json.loads((tmp_path / "out/conversion_progress.json").read_text())
    assert saved["state"] == "finished"
    size = (tmp_path / "in/score_5/episode_0.hdf5").stat().st_size
    first = saved["files"][0]
    assert (first["folder"], first["file"], first["size"]) == ("score_5", "episode_0.hdf5", size)


@pytest.mark.parametrize("killed_by", ["start", "send"])
def test_a_worker_that_dies_before_its_job_is_told_as_such(killed_by, monkeypatch):
    """As by the kernel while it imports: before it was given one, or before it has read it."""
    owner = BaseProcess if killed_by == "start" else Connection
    original = getattr(owner, killed_by)

    def then_kill(self, *given):
        original(self, *given)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()

    monkeypatch.setattr(owner, killed_by, then_kill)
    ended = {job: result.args for job, result in run_jobs(abs, [-1, -2], 2)}
    assert ended == {-1: (-9,), -2: (-9,)}


class Interrupted(Steps):
    """Breaks off when the parts are there and the dataset is not."""

    def phase(self, what, *args):
        if what == "putting together":
            raise KeyboardInterrupt
        return super().phase(what, *args)


@pytest.mark.parametrize("mode", ["image", "video"])
@pytest.mark.parametrize("change", ["removed", "added"])
def test_other_files_that_bring_other_columns_have_the_parts_written_anew(tmp_path, change, mode):
    """Velocities and efforts are there where all files have them."""
    folder, root = tmp_path / "in/score_5", tmp_path / "out"
    settings = dataclasses.replace(SETTINGS, mode=mode)
    write_episode(folder / "episode_0.hdf5", 4)
    write_episode(folder / "episode_1.hdf5", 5, extras=change == "added")
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "in", root, settings, Layout(), 1, steps=Interrupted())
    parts = root / ".conversion/parts"
    assert len(list(parts.iterdir())) == 2
    before = {path: path.stat().st_mtime_ns for path in parts.glob("*/data.parquet")}
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "in", root, settings, Layout(), 1, steps=Interrupted())
    assert {path: path.stat().st_mtime_ns for path in before} == before  # of the same files
    if change == "removed":
        (folder / "episode_1.hdf5").unlink()
    else:
        write_episode(folder / "episode_2.hdf5", 6, extras=False)
    outcome = convert(tmp_path / "in", root, settings, Layout(), 1)
    assert outcome.num_episodes == (1 if change == "removed" else 3)
    convert(tmp_path / "in", tmp_path / "whole", settings, Layout(), 1)
    assert contents(root) == contents(tmp_path / "whole")
    features = json.loads((root / "meta/info.json").read_text())["features"]
    assert ("observation.velocity" in features) == (change == "removed")
