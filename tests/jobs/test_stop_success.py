"""A run whose validation reaches `evaluation.stop_success` plays no more episodes."""

from __future__ import annotations

import json

import pytest
import yaml

from pld_ray.cli import main
from pld_ray.runs.journal import Journal
from pld_ray.runs.status import read_status

SHORT = [
    "--env.task=lift_the_can",
    "--env.episode_length=60",
    "--algorithm.offline_episodes=1",
    "--algorithm.warmup_steps=100",
    "--algorithm.batch_size=16",
    "--algorithm.hidden_dims=[16,16]",
    "--algorithm.utd=0.1",
    "--runners.num_env_runners=0",
    "--runners.sample_steps=60",
    "--evaluation.interval_steps=300",
    "--evaluation.held_states=1",
    "--evaluation.validation_states=1",
    "--tracking.enabled=false",
]

pytestmark = pytest.mark.usefixtures("ray_cluster")


def validations(folder):
    rows = Journal(folder / "metrics.jsonl").rows()
    return [
        (row["env_steps"], row["eval/residual_success"])
        for row in rows
        if "eval/residual_success" in row
    ]


def test_it_ends_there_with_its_best_and_a_resume_can_go_on(tmp_path, capsys):
    """The base policy lifts it from this state, and base + residual is that policy at first."""
    folder = tmp_path / "run"
    argv = ["train", *SHORT, "--total_steps=800", f"--output_dir={folder}"]
    assert main([*argv, "--evaluation.stop_success=1"]) == 0
    ((steps, success),) = validations(folder)
    assert success == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env_steps"] == steps < 800
    assert summary["best_validation_success"] == success
    assert summary["checkpoint"].endswith("best")
    assert summary["n_episodes"] == 1
    assert read_status(folder).state == "finished"
    assert "a validation reached evaluation.stop_success" in (folder / "train.log").read_text()
    ended = f"{steps} environment steps of 800: a validation reached evaluation.stop_success"
    assert ended in capsys.readouterr().out

    assert main(["train", f"--resume={folder}", "--algorithm.utd=2"]) == 2
    anew = "(only --total_steps, --evaluation.stop_success, --runners.num_gpus_per_learner, --ray_"
    assert anew in capsys.readouterr().err
    longer = ["--evaluation.stop_success=null", "--total_steps=900"]
    longer += ["--runners.num_gpus_per_learner=0.5"]  # on another machine
    assert main(["train", f"--resume={folder}", *longer, "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["evaluation"]["stop_success"], config["total_steps"]) == (None, 900)
    assert config["runners"]["num_gpus_per_learner"] == 0.5
    assert config["evaluation"]["validation_states"] == 1  # the run's own
