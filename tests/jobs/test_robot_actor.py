"""A robot and its person at `pld-ray actor`, the learner in another process: two commands."""

from __future__ import annotations

import fcntl
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import termios
import threading

import numpy as np
import pytest
from at_the_terminal import Terminal
from chaos import free_port
from installed import install, settings, text

from pld_ray.data.dataset import open_datasets
from pld_ray.runs.journal import read_history

HZ = 50
BEGIN = "press Enter to begin the episode"
COMMAND = [sys.executable, "-m", "pld_ray.cli"]
LEARNER = [
    *("--config_path=hilserl_single", "--ray_port={port}", "--placement.env_runner={robot: 1}"),
    *("--placement.wait_s=240", "--runners.num_env_runners=1", "--runners.sampling=asynchronous"),
    *("--runners.sample_steps=50", "--algorithm.batch_size=16", "--algorithm.hidden_dims=[8, 8]"),
    *("--algorithm.utd=0.1", "--evaluation.interval_steps=0", "--evaluation.held_states=1"),
    *("--evaluation.validation_states=1", "--tracking.enabled=false"),
    "--algorithm.warmup_steps=40",
    *("--dump_interval=1000", "--intervention.device=keyboard", f"--env.control_hz={HZ}"),
    *("--env.episode_length=40", "--env.task=reach_out"),
]


class Person(Terminal):
    """At the robot: moves it in every episode; stops it in the first, in the others succeeds."""

    def __init__(self, seen: pathlib.Path) -> None:
        super().__init__()
        self.seen = seen
        self.stopped_at = list[int]()
        self.thread = threading.Thread(target=self.act, daemon=True)

    def act(self) -> None:
        for last in itertools.chain(" ", itertools.repeat("\n")):
            self.until_asked(BEGIN)
            self.type("\n")
            x = self.commands()[-1][1]
            self.until(lambda x=x: self.moved(x), "w")
            self.type(last)
            if last == " ":
                self.until_asked("the person said so; press Enter if it may move on")
                self.stopped_at = [len(self.commands())]
                self.type("pp")  # whoever pauses looks at the arm
                self.stopped_at.append(len(self.commands()))
                self.type("\n")

    def moved(self, x: float) -> bool:
        """Whether the hand has come away from there; a random policy's may not."""
        if self.asked(BEGIN):
            self.type("\n")
        return self.commands()[-1][1] > x + 0.05

    def commands(self) -> list[tuple[int, float]]:
        """Process and hand's x (m) of each so far."""
        text = self.seen.read_text() if self.seen.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [(int(pid), float(x)) for pid, x in map(str.split, lines)]


@pytest.fixture
def person(tmp_path):
    person = Person(tmp_path / "seen")
    yield person
    person.close()


@pytest.fixture
def start():
    """A function that starts a command; all are over at the end."""
    started = []

    def start(*args, **how):
        process = subprocess.Popen([*COMMAND, *args], env=dict(os.environ), **how)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def sit_down() -> None:
    """Standard input is the terminal from which Ctrl-C comes."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def start_both(start, tmp_path, monkeypatch):
    """A function that starts the actor at a person's terminal, and the learner without one."""
    install(monkeypatch, tmp_path)

    def start_both(person, *flags, seated=True):
        port, terminal = free_port(), person.slave
        actor = start(
            *("actor", f"--address=127.0.0.1:{port}", "--num_cpus=2"),
            stdin=terminal if seated else subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=sit_down if seated else None,
        )
        person.until_asked("nothing answers")
        given = {"camera": False, "seen_in": str(person.seen)}
        made = settings(tmp_path, given, wait_for_person=True)
        robot = [f"--env.{group}.{k}={text(v)}" for group in made for k, v in made[group].items()]
        with (tmp_path / "train.log").open("w") as log:
            learner = start(
                *("train", f"--output_dir={tmp_path / 'run'}", *robot, *flags),
                *(flag.replace("{port}", str(port)) for flag in LEARNER),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it has no terminal to ask in
            )
        person.until_asked(f"joined 127.0.0.1:{port} with 1 robot")
        return actor, learner

    return start_both


@pytest.mark.chaos
def test_a_person_at_the_robot_and_a_learner_elsewhere(person, start_both, tmp_path):
    before = termios.tcgetattr(person.slave)
    actor, learner = start_both(person, "--total_steps=200")
    person.thread.start()
    assert learner.wait(timeout=240) == 0, (tmp_path / "train.log").read_text()

    drivers = {pid for pid, _ in person.commands()}
    assert len(drivers) == 1
    assert not drivers & {os.getpid(), learner.pid, actor.pid}
    assert person.stopped_at[0] == person.stopped_at[1]
    rows = read_history(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["env_steps"] >= 200
    assert max(row.get("train/assisted_success_rate", 0.0) for row in rows) > 0
    columns = [
        dataset.columns(["intervened", "action", "observation.state"])
        for dataset in open_datasets(tmp_path / "run/buffer")
    ]
    acted, action, state = (np.concatenate([c[name] for c in columns]) for name in columns[0])
    assert action[acted, 0].max() == pytest.approx(0.5)
    assert not acted.all()
    assert state.shape[1] == 6 + 6 + 1

    person.type("\x03")
    assert actor.wait(timeout=60) == 130
    assert termios.tcgetattr(person.slave) == before


@pytest.mark.chaos
def test_a_learner_that_is_to_end_does_not_wait_for_the_person(person, start_both, tmp_path):
    actor, learner = start_both(person, "--total_steps=100000")
    for _ in range(3):
        person.until_asked(BEGIN)
        person.type("\n")
    person.until_asked(BEGIN)
    commands = len(person.commands())
    learner.send_signal(signal.SIGINT)
    assert learner.wait(timeout=120) == 0
    log = (tmp_path / "train.log").read_text()
    assert "continue with: pld-ray train --resume=" in log
    assert len(person.commands()) == commands
    person.until_asked("is gone")
    assert actor.poll() is None


@pytest.mark.chaos
def test_an_actor_without_a_terminal_ends_the_run_with_a_sentence(person, start_both, tmp_path):
    _, learner = start_both(person, "--total_steps=200", seated=False)
    assert learner.wait(timeout=240) == 2
    log = (tmp_path / "train.log").read_text()
    assert "or of pld-ray actor, and there is none: start it in a terminal" in log.splitlines()[-1]
    assert not person.commands()
