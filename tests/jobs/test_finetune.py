"""`pld-ray finetune`: to the end, stopped and resumed, and refused in a sentence."""

from __future__ import annotations

import os
import pathlib
import re
import signal

import numpy as np
import pytest
from sharded_data import recorded_episode, write_dataset
from tiny_policies import FRONT, WRIST, save_policy, small_networks

from pld_ray.cli import main
from pld_ray.config import ConfigError
from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data import conversion_progress
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.jobs.finetune import check_finetune, finetune
from pld_ray.jobs.finetune_learner import find_inputs, learn, updates_done
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.policies import load_base_policy
from pld_ray.runs.journal import read_history
from pld_ray.runs.run_dir import RunDir, RunError

SMALL = [
    *("--algorithm.batch_size=8", "--total_steps=20", "--evaluation.interval_steps=10"),
    "--tracking.enabled=false",
]


@pytest.fixture
def dataset(tmp_path):
    write_dataset(tmp_path / "data", (12, 3, 9, 20, 7))
    return str(tmp_path / "data")


def configured(dataset: str, folder: pathlib.Path, *flags: str) -> FinetuneConfig:
    flags = (*SMALL, *flags, f"--dataset=[{dataset}]", f"--output_dir={folder}")
    return load_config(FinetuneConfig, list(flags))


def figures(folder: pathlib.Path) -> list[dict[str, float]]:
    rows = read_history(folder / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows
    ]


def test_a_policy_that_nobody_plays_declares_the_images_that_it_learnt_from(tmp_path):
    columns = recorded_episode(np.random.default_rng(0), 6)
    columns |= {camera: np.zeros((7, 96, 128, 3), np.uint8) for camera in (FRONT, WRIST)}
    writer = EpisodeWriter(tmp_path / "seen", Recording("lift the can", 20))
    writer.add(columns)
    writer.finish()
    base = save_policy("act", tmp_path / "base")  # of images of 64 pixels
    config = configured(str(tmp_path / "seen"), tmp_path / "run", f"--policy.path={base}")
    config.total_steps = config.evaluation.interval_steps = 1
    config.algorithm.batch_size = 2
    with small_networks():
        summary = finetune(config)
        learnt = load_base_policy(summary["policy"])
    assert learnt.input_features[FRONT] == learnt.input_features[WRIST] == (3, 96, 128)


def test_a_run_from_the_command_line_to_a_policy_that_is_played(dataset, tmp_path, capsys):
    folder = tmp_path / "run"
    played = ["--evaluation.validation_states=1", "--env.task=lift_the_can"]
    assert main(["finetune", dataset, *SMALL, *played, f"--output_dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert "samples/s" in out
    assert f"next: pld-ray train --policy.path={folder}/checkpoints/best/policy" in out
    evaluated = [row for row in figures(folder) if "eval/loss" in row]
    assert [row["updates"] for row in evaluated] == [0, 10, 20]
    assert all(row["eval/success"] in (0.0, 1.0) for row in evaluated)
    assert main(["ls", str(folder)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["show", str(folder)]) == 0
    assert main(["eval", f"--checkpoint={folder}/checkpoints/best"]) == 2
    assert "is a run of pld-ray finetune" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["export", str(folder), f"--to={out}"]) == 0
    exported, best = (f / "model.safetensors" for f in (out, folder / "checkpoints/best/policy"))
    assert exported.read_bytes() == best.read_bytes()


def test_stopped_and_resumed_it_is_the_run_that_nobody_stopped(dataset, tmp_path):
    straight = finetune(configured(dataset, tmp_path / "a"))
    stopped = configured(dataset, tmp_path / "b")
    seen = 0

    def stop_at_half(number: int) -> None:
        nonlocal seen
        seen += number
        if seen == 8 * 13:
            os.kill(os.getpid(), signal.SIGINT)

    assert "policy" not in finetune(stopped, on_samples=stop_at_half)
    resumed = finetune(RunDir(tmp_path / "b").load_config(FinetuneConfig), tmp_path / "b")
    for name in ("policy/model.safetensors", "components/optimizer.safetensors"):
        one, other = (tmp_path / run / "checkpoints/final" / name for run in ("a", "b"))
        assert one.read_bytes() == other.read_bytes(), name
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    for key in ("updates", "validation_loss", "start_loss"):
        assert straight[key] == resumed[key]


def stopped_run(dataset: str, folder: pathlib.Path) -> FinetuneConfig:
    """A run that was stopped at its first update; its configuration."""

    def stop(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert "policy" not in finetune(configured(dataset, folder), on_samples=stop)
    return RunDir(folder).load_config(FinetuneConfig)


def test_what_is_given_anew_holds_for_the_next_resume(dataset, tmp_path):
    config = stopped_run(dataset, tmp_path / "run")
    config.checkpoint.keep += 1
    assert RunDir(tmp_path / "run").load_config(FinetuneConfig) != config
    assert "policy" in finetune(config, tmp_path / "run")
    assert RunDir(tmp_path / "run").load_config(FinetuneConfig) == config


def test_a_run_that_goes_on_says_how_far_it_is_of_all(dataset, tmp_path, capsys, monkeypatch):
    stopped_run(dataset, tmp_path / "run")
    before = updates_done(RunDir(tmp_path / "run"))
    assert 0 < before < 20
    monkeypatch.setattr(conversion_progress, "LINE_S", 0.0)
    assert main(["finetune", f"--resume={tmp_path / 'run'}"]) == 0
    said = re.findall(r"fine-tuning: (\d+) of (\d+) samples", capsys.readouterr().out)
    assert said == [(str(8 * update), "160") for update in range(before + 1, 21)]


def test_a_dataset_that_has_grown_since_is_not_held_out_anew(dataset, tmp_path, capsys):
    run = tmp_path / "run"
    config = stopped_run(dataset, run)
    pathlib.Path(dataset).rename(tmp_path / "aside")
    write_dataset(pathlib.Path(dataset), (12, 3, 9, 20, 7, 5, 5))
    before = figures(run)
    assert main(["finetune", f"--resume={run}"]) == 2
    said = capsys.readouterr().err
    assert f"{dataset} has changed since {run} began" in said
    assert "put it back as it was" in said
    assert figures(run) == before
    with pytest.raises(RunError, match="data has changed since"):  # a learner that starts again
        learn(config, RunDir(run), True, find_inputs(config), lambda number: None, StopRequest())


def test_a_dataset_that_lies_elsewhere_is_the_same(dataset, tmp_path):
    config = stopped_run(dataset, tmp_path / "run")
    pathlib.Path(dataset).rename(tmp_path / "moved")
    config.dataset = [str(tmp_path / "moved")]
    assert finetune(config, tmp_path / "run")["updates"] == 20


def test_datasets_that_came_or_went_are_named(dataset, tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    pathlib.Path(dataset).rename(folder / "a")
    write_dataset(folder / "b", (5, 5), seed=1)
    config = stopped_run(str(folder), tmp_path / "run")
    write_dataset(folder / "c", (5, 5), seed=2)
    with pytest.raises(RunError, match=r"several/c was added since .*run began: episodes"):
        finetune(config, tmp_path / "run")
    for name in "bc":
        (folder / name).rename(tmp_path / name)
    with pytest.raises(RunError, match="several/b is missing since"):
        finetune(config, tmp_path / "run")


def test_what_cannot_work_is_refused_in_a_sentence(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"batch_size=8: must be a multiple .* such as 9"):
        configured(dataset, tmp_path / "r", "--algorithm.accumulation=3")
    with pytest.raises(ConfigError, match="2 entries for 1 datasets"):
        configured(dataset, tmp_path / "r", "--dataset_weights=[1,2]")
    with pytest.raises(ConfigError, match="name one or more"):
        check_finetune(FinetuneConfig())
    far = configured(dataset, tmp_path / "r", "--evaluation.validation_states=100000")
    with pytest.raises(ConfigError, match="stored init states"):
        check_finetune(far)
    with pytest.raises(ConfigError, match="no such folder"):
        check_finetune(configured(dataset, tmp_path / "r", "--policy.path=nowhere"))
    assert not (tmp_path / "r").exists()
