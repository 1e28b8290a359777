"""The commands of docs/chunked.md, with little to learn."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from camera_point import CAMERAS, CameraPoint
from point_demonstrations import EPISODE_LENGTH, SIDE, record

from pld_ray.algorithm.residual.pretrained import read_networks
from pld_ray.cli import main
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.policies import load_base_policy
from pld_ray.rllib.learners import LearnerLostError, Learners

PAGE = pathlib.Path(__file__).parents[2] / "docs/chunked.md"
SMALL = [
    "--env.entry_point=envs.point:PointEnv",
    f"--env.kwargs={{episode_length: {EPISODE_LENGTH}, side: {SIDE}}}",
    "--env.task=point",
    "--algorithm.hidden_dims=[16, 16]",
    "--algorithm.num_critics=2",
    "--algorithm.batch_size=16",
    "--algorithm.offline_updates=20",
    "--algorithm.num_candidates=4",
    "--algorithm.horizon=4",
    "--algorithm.utd=0.05",
    "--runners.num_env_runners=0",
    "--evaluation.held_states=4",
    "--evaluation.validation_states=2",
    "--total_steps=400",
    "--tracking.enabled=false",
]

pytestmark = pytest.mark.usefixtures("ray_cluster")


def commands(program="pld-ray", block=0):
    """Of one of the page's blocks."""
    block = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.S)[block]
    lines = [shlex.split(line) for line in block.splitlines()]
    return [line[1:] for line in lines if line[:1] == [program]]


def test_the_page_s_recorder_starts():
    ((script, *flags),) = commands("python")
    said = subprocess.run(
        [sys.executable, script, "--help"], cwd=PAGE.parents[1], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert all(flag in said.stdout for flag in flags if flag.startswith("--"))


@pytest.mark.timeout(600)
def test_the_page_s_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "outputs/demonstrations")
    train, *others = commands()
    assert train[0] == "acrlpd"
    assert main([*train, *SMALL, "--dry_run"]) == 0
    assert main([*train, *SMALL]) == 0
    for command in others:
        assert main(command) == 0, command
    out = capsys.readouterr().out
    assert "learnt policy" in out
    run = tmp_path / "outputs/chunked"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    at_start = next(row for row in rows if "eval/offline_success" in row)
    assert {"eval/base_success", "eval/n_episodes"} <= at_start.keys()
    assert any("learner/flow_loss" in row for row in rows)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] > 20  # online, too
    assert summary["base_success"] == at_start["eval/base_success"]

    # what was exported answers as what was evaluated, and is a base policy
    policy = load_base_policy(tmp_path / "outputs/chunked_policy")
    observation = {
        "observation.state": np.zeros((2, 8), np.float32),
        "observation.environment_state": np.zeros((2, 24), np.float32),
    }
    answer = policy.infer(observation, ["", ""], [0, 1], [3, 3])
    assert answer.chunks.shape == (2, 4, 7)
    np.testing.assert_array_equal(answer.chunks[0], answer.chunks[1])
    residual = ["train", "--policy.path=outputs/chunked_policy", "--output_dir=outputs/residual"]
    assert main([*residual, *SMALL[:3], *SMALL[-4:], "--dry_run"]) == 0
    assert main(["train", "--resume=outputs/chunked", "--total_steps=700"]) == 0
    longer = json.loads((run / "summary.json").read_text())
    assert longer["env_steps"] >= 700 > summary["env_steps"]


@pytest.fixture(scope="module")
def offline_flags(tmp_path_factory, ray_cluster):
    data = record(tmp_path_factory.mktemp("offline") / "demonstrations")
    every = [f"--demo_path={data}", "--learners.checkpoint_updates=8", "--checkpoint.keep=3"]
    every += ["--evaluation.held_states=1", "--evaluation.validation_states=1"]
    small = [flag for flag in SMALL if not flag.startswith(("--total_steps", "--evaluation"))]
    return ["acrlpd", *small, *every, "--total_steps=100"]


def ended_at(monkeypatch, error, iteration):
    """The run ends so when this iteration would begin; a list of the offline updates asked for."""
    iterate, train = TrainingLoop.iterate, Learners.train
    begun, asked = [], []

    def end_once(self, *args):
        begun.append(1)
        if len(begun) == iteration:
            raise error
        return iterate(self, *args)

    def counted(self, num_updates, *args):
        if self.replay_sizes()[0] == 0:
            asked.append(num_updates)
        return train(self, num_updates, *args)

    monkeypatch.setattr(TrainingLoop, "iterate", end_once)
    monkeypatch.setattr(Learners, "train", counted)
    return asked


def learnt(run, name):
    return read_networks(run / "checkpoints" / name)


@pytest.fixture(scope="module")
def straight(offline_flags, tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    assert main([*offline_flags, f"--output_dir={run}"]) == 0
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [True, False])
def test_offline_updates_are_made_once(lost, offline_flags, straight, tmp_path, monkeypatch):
    """A learner is lost within the offline phase; or the run is killed right after it."""
    iteration = 4 if lost else 5
    error = LearnerLostError("killed") if lost else SystemExit("killed")
    asked = ended_at(monkeypatch, error, iteration)
    run = tmp_path / "run"
    command = [*offline_flags, f"--output_dir={run}"]
    if lost:
        assert main(command) == 0
    else:
        with pytest.raises(SystemExit):
            main(command)
        assert main(["train", f"--resume={run}"]) == 0
    assert asked == [8, 8, 4]
    names = {path.name for path in (run / "checkpoints").glob("offline_*")}
    assert names == {"offline_000000008", "offline_000000016", "offline_000000020"}
    for name in ("offline_000000020", "final"):
        one, other = learnt(run, name), learnt(straight, name)
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=f"{name}: {key}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval/offline_success" in row for row in rows) == 1


@pytest.mark.timeout(600)
def test_cameras_from_the_page_s_command_to_a_base_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "DATASET", env=CameraPoint(EPISODE_LENGTH, SIDE))
    (command,) = commands(block=1)
    command = [flag for flag in command if flag != "--env.cameras=[image]"]  # it has its own
    small = [flag.replace("envs.point:PointEnv", "camera_point:CameraPoint") for flag in SMALL]
    small += ["--algorithm.image_encoder_hidden_dim=4", "--algorithm.latent_dim=8"]
    small += ["--algorithm.online_capacity=2000", "--algorithm.fusion=mlp"]
    assert main([*command, *small]) == 0
    assert main(["export", "outputs/chunked_images", "--to=policy"]) == 0
    assert set(CAMERAS) <= load_base_policy("policy").input_features.keys()
    residual = ["train", "--policy.path=policy", "--output_dir=residual"]
    assert main([*residual, *small[:3], *SMALL[-4:], "--dry_run"]) == 0
