"""A robot's machine that comes late, goes in an episode and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from chaos import POINT_RUN, check_counts, free_port, progress, wait_for

from pld_ray.config import TrainConfig
from pld_ray.config.file import load_config
from pld_ray.data.dataset import open_datasets
from pld_ray.jobs.cluster import alive_nodes, check_cluster
from pld_ray.rllib import ResidualSACConfig
from pld_ray.rllib.intake import fetch_episodes
from pld_ray.runs.journal import read_history

AT_THE_ROBOT = ["--runners.num_env_runners=1", "--placement.env_runner={robot: 1}"]


class Seen:
    """The first observation of each episode that goes into the replay, with its phase: the seeds of
    two phases may be the same."""

    def __init__(self, algorithm):
        self.algorithm = algorithm
        self.starts, self.rows = [], 0

    def __call__(self, batches):
        for batch in batches:
            if batch.buffer != "online" or (columns := fetch_episodes(batch)) is None:
                continue
            first = 0
            for length in batch.kept:
                place = [columns[f"observation.{name}"][first] for name in COLUMNS]
                start = b"".join(vector.tobytes() for vector in place)
                self.starts.append((self.algorithm.phase, start))
                first, self.rows = first + length + 1, self.rows + length


COLUMNS = ("state", "environment_state")
COUNTED = ("env_steps", "stored_steps", "collection_stored_steps", "updates", "episodes")


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_training_waits_for_the_robot_and_stores_no_row_twice(
    kills, cluster, add_node, connect, tmp_path, caplog, monkeypatch
):
    connect()
    settings = [*AT_THE_ROBOT, f"--output_dir={tmp_path}", "--placement.wait_s=240"]
    config = load_config(TrainConfig, [*POINT_RUN, *settings, "--tracking.enabled=false"])
    robot, looks = None, 0

    def look():
        nonlocal robot, looks
        looks += 1
        if looks == 2:  # the learner was there first
            robot = add_node(robot=1)
        return alive_nodes()

    monkeypatch.setattr("pld_ray.jobs.cluster.alive_nodes", look)
    check_cluster(config)
    assert robot is not None
    algorithm = ResidualSACConfig.of_run(config).build_algo()
    algorithm.learners.on_store = seen = Seen(algorithm)
    waited = []

    def come_back():
        nonlocal robot
        if robot is None:
            waited.append(algorithm.env_steps)
            robot = add_node(robot=1)

    algorithm.runners.on_wait = come_back
    try:
        for _ in range(kills):
            algorithm.train()
            cluster.remove_node(robot, allow_graceful=False)
            robot = None
            algorithm.train()
        while not algorithm.updates:
            algorithm.train()
        algorithm.asynchronous.drain()
        check_counts(algorithm)
        assert len(waited) == kills
        repeated = len(seen.starts) - len(set(seen.starts))
        assert repeated == 0
        counts = algorithm.progress
        assert seen.rows == counts.stored_steps + counts.collection_stored_steps
        assert algorithm.metrics.peek("num_env_steps_lost", default=0) == 0
        # what is not stored: open episodes
        unaccounted = counts.env_steps - seen.rows
        assert unaccounted <= (kills + 1) * 40 + counts.collection_env_steps
    finally:
        algorithm.stop()
    said = [record.getMessage() for record in caplog.records if record.name == "pld_ray"]
    for text in ("env runner 1 is gone", "no env runner is left", "env runner 1 is back"):
        assert sum(text in line for line in said) == kills


def env_steps(folder):
    """That a run has written down so far."""
    return read_history(folder / "metrics.jsonl")[-1]["env_steps"]


def stored_steps(folder):
    """Each step that went into the online replay of a run, by what was seen and done."""
    names = [*(f"observation.{name}" for name in COLUMNS), "action"]
    tables = [dataset.columns(names) for dataset in open_datasets(folder / "buffer")]
    return np.concatenate([np.hstack([table[name] for name in names]) for table in tables])


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.timeout(1500))])
def test_two_commands_and_an_actor_that_is_killed(kills, start_run, tmp_path):
    port, log = free_port(), tmp_path / "actor.log"

    def start_actor():
        command = [sys.executable, "-m", "pld_ray.cli", "actor", f"--address=127.0.0.1:{port}"]
        with log.open("a") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ))

    def goes_on():
        before = env_steps(folder)
        wait_for(lambda: env_steps(folder) > before, "another step")

    def said(words, times):
        report = folder / "train.log"
        wait_for(lambda: report.read_text().count(words) == times, f"{words!r}, {times} times")

    actor, folder = start_actor(), tmp_path / "run"
    try:
        wait_for(lambda: "nothing answers" in log.read_text(), "the actor's wait")
        run = start_run(
            *(flag.replace("step_s: 0.002", "step_s: 0.008") for flag in POINT_RUN),
            *AT_THE_ROBOT,
            "--tracking.enabled=false",
            f"--output_dir={folder}",
            f"--ray_port={port}",
            "--placement.wait_s=240",
            "--dump_interval=4000",
            f"--total_steps={5_000 * (kills + 1)}",  # a dead actor is noticed after some 4,000
        )
        wait_for(lambda: list((folder / "checkpoints").glob("step_*")), "the first checkpoint")
        for kill in range(1, kills + 1):
            goes_on()
            actor.kill()
            actor.wait()
            said("no env runner is left", kill)
            actor = start_actor()
            said("env runner 1 is back", kill)
        assert run.wait(timeout=900) == 0  # 8 ms a step
        counts = progress(folder, "final")
        stored = stored_steps(folder)
        print({name: counts[name] for name in COUNTED}, len(stored))
        assert len(stored) == counts["stored_steps"] + counts["collection_stored_steps"]
        assert len(np.unique(stored, axis=0)) == len(stored)
        # the open episode, and what was on its way
        lost = counts["env_steps"] - len(stored)
        assert 0 <= lost <= (kills + 1) * 40 + counts["collection_env_steps"]
        rows = read_history(folder / "metrics.jsonl")
        assert max(row.get("train/num_env_steps_lost", 0) for row in rows) == 0
        owed = 0.1 * counts["stored_steps"]
        assert counts["updates"] + counts["update_debt"] == pytest.approx(owed)
        command = [sys.executable, "-m", "pld_ray.cli", "eval"]
        command.append(f"--checkpoint={folder}/checkpoints/final")
        printed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert "on 2 held init states" in printed.stdout
        actor.send_signal(signal.SIGTERM)
        assert actor.wait(timeout=60) == 130
        assert log.read_text().count("joined 127.0.0.1") == kills + 2  # the last one to evaluate
    finally:
        actor.kill()
        actor.wait()
