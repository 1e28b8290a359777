"""One writer at a time records into a folder, and a killed one keeps nobody away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from pld_ray.data.dataset import Dataset
from pld_ray.data.episode_writer import EpisodeWriter, Recording, kept_so_far
from pld_ray.data.errors import DataError

RECORDING = Recording("reach", 10)
WRITER = """
import pathlib, sys
from pld_ray.data.episode_writer import EpisodeWriter, Recording
writer = EpisodeWriter(pathlib.Path(sys.argv[1]), Recording("reach", 10))
print("begun", flush=True)
input()
"""


def episode(length):
    flags = np.zeros((3, length + 1), bool)
    flags[::2, -2] = True
    zeros = np.zeros(length + 1, np.float32)
    return {
        "observation.state": np.zeros((length + 1, 2), np.float32),
        "action": np.zeros((length + 1, 2), np.float32),
        **dict.fromkeys(("reward", "residual_scale"), zeros),
        **dict(zip(("terminated", "truncated", "success"), flags, strict=True)),
    }


def test_a_second_writer_is_refused_until_the_first_one_is_done(tmp_path):
    root = tmp_path / "d"
    with EpisodeWriter(root, RECORDING) as first:
        first.add(episode(3))
        with pytest.raises(DataError, match=r"d is in use by this process: wait for it, or give"):
            EpisodeWriter(root, RECORDING)
        first.add(episode(4))
    second = EpisodeWriter(root, RECORDING)
    second.add(episode(5))
    second.finish()
    assert Dataset(root).lengths.tolist() == [3, 4, 5]
    assert sorted(os.listdir(root)) == ["collection_progress.json", "data", "meta"]


def test_a_writer_that_failed_or_was_forgotten_keeps_nobody_away(tmp_path):
    root = tmp_path / "d"
    with contextlib.suppress(KeyboardInterrupt), EpisodeWriter(root, RECORDING) as failed:
        failed.add(episode(3))
        raise KeyboardInterrupt
    assert len(failed) == 1
    EpisodeWriter(root, RECORDING).add(episode(4))  # no `with`, no `finish`
    assert EpisodeWriter(root, RECORDING).lengths == [3, 4]


def test_a_killed_process_keeps_nobody_away(tmp_path):
    root = tmp_path / "d"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout.readline() == "begun\n"
            with pytest.raises(DataError, match=f"d is in use by process {other.pid}: wait for it"):
                EpisodeWriter(root, RECORDING)
        finally:
            other.send_signal(signal.SIGKILL)
    assert (root / ".collection/run.lock").exists()
    for missing in ((), ("collection_progress.json",)):  # killed before it wrote its progress
        for name in missing:
            (root / name).unlink()
        assert EpisodeWriter(root, RECORDING).lengths == []


def test_an_episode_that_is_there_already_is_not_passed_over(tmp_path):
    with EpisodeWriter(tmp_path / "d", RECORDING) as writer:
        (tmp_path / "d/.collection/parts/000000").mkdir()
        with pytest.raises(DataError, match=r"parts/000000 is there already: .* another folder"):
            writer.add(episode(3))
        assert len(writer) == 0


def test_what_a_stopped_recording_has_is_known_before_it_goes_on(tmp_path):
    root = tmp_path / "d"
    assert kept_so_far(root) == 0
    with EpisodeWriter(root, RECORDING) as writer:
        for number in range(3):
            columns = episode(3)
            columns["success"] = np.full_like(columns["success"], number == 1)
            writer.add(columns)
    assert (kept_so_far(root), kept_so_far(root, successes=True)) == (3, 1)
    with EpisodeWriter(root, RECORDING) as writer:
        writer.finish()
    assert kept_so_far(root) == 0
