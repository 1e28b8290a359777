"""An arm by commands: LeRobot's robot, which MuJoCo moves, with a person and without."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest
from at_the_terminal import LIMIT_S, Terminal
from installed import install, settings, text

from pld_ray.cli import main
from pld_ray.data.dataset import Dataset
from pld_ray.rollout.keyboard import TERMINAL
from pld_ray.rollout.robot import arm as arm_module
from pld_ray.rollout.robot import env as env_module
from pld_ray.runs.journal import read_history

pytestmark = pytest.mark.usefixtures("ray_cluster")

STATE_DIM = 6 + 6 + 1


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """A function that says which robot it is, in the folder of the test."""
    install(monkeypatch, tmp_path)
    monkeypatch.setattr(env_module, "SETTLE_S", 0.05)
    monkeypatch.chdir(tmp_path)

    def flags(control_hz, episode_length, camera=False, **arm):
        made = settings(tmp_path, {"camera": camera}, **arm)
        return [
            *(f"--env.robot.{name}={value}" for name, value in made["robot"].items()),
            *(f"--env.arm.{name}={text(value)}" for name, value in made["arm"].items()),
            *(f"--env.control_hz={control_hz}", f"--env.episode_length={episode_length}"),
            *("--env.task=reach_out", "--policy.type=none", "--runners.num_env_runners=0"),
            "--tracking.enabled=false",
        ]

    return flags


class Leaving(Terminal):
    """Begins two episodes, and ends the command where it asks for the third."""

    def __init__(self):
        super().__init__()
        self.ended, self.had_to_begin = threading.Event(), False
        self.thread = threading.Thread(target=self.act, daemon=True)

    def act(self):
        begin = "press Enter to begin the episode"
        for _ in range(2):
            self.until_asked(begin)
            self.type("\n")
        self.until_asked(begin)
        os.kill(os.getpid(), signal.SIGINT)
        self.had_to_begin = not self.ended.wait(LIMIT_S)
        while self.had_to_begin:
            self.type("\n")
            self.until_asked(begin)


def test_a_run_that_is_to_end_does_not_wait_for_its_person(flags, tmp_path, capsys, monkeypatch):
    person = Leaving()
    monkeypatch.setenv(TERMINAL, person.path)
    robot = flags(control_hz=200, episode_length=20, wait_for_person=True)
    person.thread.start()
    train = [
        *("train", *robot, "--config_path=hilserl_single", "--output_dir=run"),
        *("--algorithm.hidden_dims=[8, 8]", "--evaluation.interval_steps=0"),
    ]
    assert main(train) == 0, capsys.readouterr().err
    person.ended.set()
    assert not person.had_to_begin
    assert f"continue with: pld-ray train --resume={tmp_path / 'run'}" in capsys.readouterr().out
    assert (tmp_path / "run/checkpoints/interrupted").is_dir()
    assert not arm_module._open
    person.thread.join(LIMIT_S)
    person.close()


def test_record_and_learn_from_scratch(flags, tmp_path, capsys):
    robot = flags(control_hz=1000, episode_length=20)
    record = ["collect", "--root=hand", "--episodes=2", "--keep_failures", *robot]
    assert main(record) == 0, capsys.readouterr().err
    assert not arm_module._open
    hand = Dataset(tmp_path / "hand")
    assert [row["length"] for row in hand.episodes] == [20, 20]
    assert hand.info["robot_type"] == "tabletop"
    assert hand.info["fps"] == 1000
    assert hand.columns(["observation.state"])["observation.state"].shape[1] == STATE_DIM

    robot = flags(control_hz=1000, episode_length=60)  # it takes its time to begin one
    train = [
        *("train", *robot, "--config_path=hilserl_single", "--output_dir=run"),
        *("--total_steps=150", "--demo_path=hand", "--demo_episodes=all"),
        *("--algorithm.batch_size=16", "--algorithm.hidden_dims=[8, 8]", "--algorithm.utd=0.1"),
        *("--runners.sample_steps=50", "--evaluation.interval_steps=0"),
        *("--evaluation.held_states=1", "--evaluation.validation_states=1"),
    ]
    assert main(train) == 0, capsys.readouterr().err
    rows = read_history(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["env_steps"] >= 150
    assert not arm_module._open  # the port is free again
    assert (tmp_path / "run/checkpoints/final").is_dir()
    assert not any("base" in name for row in rows for name in row)  # no base policy, no episodes
    assert json.loads((tmp_path / "run/summary.json").read_text())["base_success"] is None
    assert "\nlearnt policy 0% on 1 held init states" in capsys.readouterr().out
    assert main(["show", "run"]) == 0
    assert "learnt policy 0%" in capsys.readouterr().out
    assert main(["eval", "--checkpoint=run/checkpoints/final"]) == 0
    assert capsys.readouterr().out.startswith("learnt policy 0% on 1 held init states")
    info = json.loads((tmp_path / "run/eval/final/eval_info.json").read_text())
    assert {episode["policy"] for episode in info["episodes"]} == {"residual"}


def test_nothing_shakes_an_arm_whose_frames_are_recorded(flags, tmp_path, capsys):
    robot = flags(control_hz=1000, episode_length=10, camera=True)
    record = ["classifier", "collect", "--root=frames", "--episodes=2", *robot]
    assert main(record) == 0, capsys.readouterr().err
    frames = Dataset(tmp_path / "frames")
    assert [row["length"] for row in frames.episodes] == [10, 10]
    assert not frames.columns(["action"])["action"].any()


class Person(Terminal):
    """Begins, moves, stops, begins again, moves, succeeds."""

    def __init__(self):
        super().__init__()
        self.stopped_at = []
        self.thread = threading.Thread(target=self.act, daemon=True)

    def act(self):
        for last in (" ", "\n"):
            self.until_asked("press Enter to begin the episode")
            self.type("\n")
            ((arm, _),) = arm_module._open.values()
            robot = arm._robot
            sent, x = len(robot.sent), robot.hand[0]
            self.until(lambda robot=robot, sent=sent: len(robot.sent) > sent + 3)
            self.until(lambda robot=robot, x=x: robot.hand[0] > x + 0.005, "w")
            self.type(last)
            if last == " ":
                self.until_asked("the person said so; press Enter if it may move on")
                self.stopped_at = [len(robot.sent)]
                robot.run(0.5)
                self.stopped_at.append(len(robot.sent))
                self.type("\n")


def test_a_person_records_from_the_terminal_and_stops_the_arm(flags, tmp_path, capsys, monkeypatch):
    person = Person()
    monkeypatch.setenv(TERMINAL, person.path)
    robot = flags(control_hz=50, episode_length=1000, wait_for_person=True)
    person.thread.start()
    record = ["collect", "--root=hand", "--device=keyboard", "--successes=1", *robot]
    assert main(record) == 0, capsys.readouterr().err
    person.thread.join(LIMIT_S)
    assert person.stopped_at[0] == person.stopped_at[1]
    hand = Dataset(tmp_path / "hand")
    columns = hand.columns(["intervened", "action", "next.success", "observation.state"])
    assert len(hand.episodes) == 1  # the one that was stopped is thrown away
    assert columns["next.success"].sum() == 1
    assert columns["intervened"].any()
    assert not columns["intervened"].all()
    assert columns["action"][columns["intervened"]][:, 0].max() == pytest.approx(0.5)
    x = columns["observation.state"][:, 6]
    assert x[-1] > x[0] + 0.005
    person.close()
