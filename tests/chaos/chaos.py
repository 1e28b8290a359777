"""What the fault tests share: a run small enough to be broken in a minute, and its counts."""

from __future__ import annotations

import json
import pathlib
import socket
import time

import pytest

POINT_RUN = [
    "--env.entry_point=envs.point:PointEnv",
    "--env.task=reach_the_goal",
    "--env.suite=point",
    "--env.kwargs={episode_length: 40, step_s: 0.002}",
    "--policy.type=none",
    "--algorithm.offline_episodes=0",
    "--algorithm.warmup_steps=200",
    "--algorithm.warmup_actions=random",
    "--algorithm.use_probing=false",
    "--algorithm.batch_size=16",
    "--algorithm.hidden_dims=[16,16]",
    "--algorithm.actor_delay_updates=0",
    "--algorithm.utd=0.1",
    "--algorithm.compose_base=false",
    "--runners.sampling=asynchronous",
    "--runners.publish_interval=10",
    "--evaluation.interval_steps=0",
    "--evaluation.held_states=2",
    "--evaluation.validation_states=2",
    "--checkpoint.interval_steps=1000",
]


def wait_for(condition, what: str, timeout_s: float = 240.0) -> None:
    """Poll a condition of another process; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Planted:
    """Makes the file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (pathlib.Path.touch, (self.path,))


def progress(folder: pathlib.Path, checkpoint: str) -> dict:
    """The counters of a checkpoint."""
    return json.loads((folder / "checkpoints" / checkpoint / "residual_sac.json").read_text())


def check_counts(algorithm) -> None:
    """Nothing counted twice: every stored step is in the replay once and paid for once."""
    counts, utd = algorithm.progress, algorithm.config.utd
    assert counts.updates + counts.update_debt == pytest.approx(utd * counts.stored_steps)
    rows, _ = algorithm.learners.replay_sizes()
    assert rows == counts.stored_steps + counts.collection_stored_steps
    assert counts.env_steps >= rows
