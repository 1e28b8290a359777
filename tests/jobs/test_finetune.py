"""`pld-ray finetune`: to the end, stopped and resumed, and refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sharded_data import recorded_episode, write_dataset
from tiny_policies import FRONT, WRIST, save_policy, small_networks

from pld_ray.cli import main
from pld_ray.config import ConfigError
from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data import conversion_progress, training_windows
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.jobs import finetune_loop
from pld_ray.jobs.finetune import check_finetune, check_played, finetune
from pld_ray.jobs.finetune_learner import (
    base_policy_of,
    check_same_base,
    find_inputs,
    learn,
    updates_done,
)
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.policies import EMBEDDED_ACT, load_base_policy
from pld_ray.runs.journal import read_history
from pld_ray.runs.layout import STATUS_FILE
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import Ranks
from pld_ray.sharded.trainee import needed_by

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


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.mark.parametrize("moment", ["evaluated", "noted", "after"])
def test_killed_around_an_evaluation_it_is_the_run_that_nobody_killed(
    dataset, tmp_path, monkeypatch, moment
):
    """While the candidate is evaluated, when that is over, and when it is written down."""
    flags = ["--checkpoint.interval_steps=10"]
    finetune(configured(dataset, tmp_path / "a", *flags))
    evaluate, note = finetune_loop.FinetuneLoop.evaluate, finetune_loop.note_evaluation

    def killed_while_it_evaluates(self, checkpoint):
        if self.trainer.updates == 10 and moment == "evaluated":
            self.writer.settle()
            raise Killed
        return evaluate(self, checkpoint)

    def killed_while_it_notes(*given):
        if moment == "after":
            note(*given)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(finetune_loop.FinetuneLoop, "evaluate", killed_while_it_evaluates)
        patched.setattr(finetune_loop, "note_evaluation", killed_while_it_notes)
        with pytest.raises(Killed):
            finetune(configured(dataset, tmp_path / "b", *flags))
    finetune(RunDir(tmp_path / "b").load_config(FinetuneConfig), tmp_path / "b")
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    for name in ("best", "step_000000010", "step_000000020", "final"):
        one, other = (tmp_path / run / "checkpoints" / name for run in ("a", "b"))
        assert updates_of(one) == updates_of(other), name
        one, other = (folder / "policy/model.safetensors" for folder in (one, other))
        assert one.read_bytes() == other.read_bytes(), name


def updates_of(checkpoint: pathlib.Path) -> int:
    return json.loads((checkpoint / "policy/PROVENANCE.json").read_text())["updates"]


def test_the_figures_of_all_updates_are_recorded(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_loop, "RECORD_UPDATES", 8)
    config = configured(dataset, tmp_path / "run")
    finetune(config)
    rows = [row for row in figures(tmp_path / "run") if "train/loss" in row]
    assert [row["updates"] for row in rows] == [8, 16, 20]
    monkeypatch.setattr(finetune_loop, "RECORD_UPDATES", 1)
    config.output_dir = str(tmp_path / "each")
    finetune(config)
    each = [row["train/loss"] for row in figures(tmp_path / "each") if "train/loss" in row]
    means = [np.mean(each[:8]), np.mean(each[8:16]), np.mean(each[16:])]
    assert [row["train/loss"] for row in rows] == pytest.approx(means)


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


def test_a_run_that_learnt_from_other_episodes_of_the_same_data_is_not_held_out_anew(
    dataset, tmp_path, capsys, monkeypatch
):
    stopped_run(dataset, tmp_path / "run")
    original = training_windows.episodes_of
    monkeypatch.setattr(training_windows, "episodes_of", lambda *how: original(*how)[1:])
    assert main(["finetune", f"--resume={tmp_path / 'run'}"]) == 2
    assert "began with 5 episodes, and 4 are found now" in capsys.readouterr().err


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


def embedded_copy(folder: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(EMBEDDED_ACT, folder))


def test_another_base_policy_is_not_gone_on_with(dataset, tmp_path, capsys):
    base, run = embedded_copy(tmp_path / "base"), tmp_path / "run"

    def stop(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    finetune(configured(dataset, run, f"--policy.path={base}"), on_samples=stop)
    config, before = RunDir(run).load_config(FinetuneConfig), figures(run)
    status = (run / STATUS_FILE).read_bytes()
    (statistics,) = base.glob("*unnormalizer_processor.safetensors")
    save_file({name: value * 3 for name, value in load_file(statistics).items()}, statistics)
    assert main(["finetune", f"--resume={run}"]) == 2
    said = capsys.readouterr().err
    assert re.search(
        rf"{base} is the base policy \w{{12}}, and {run} began with \w{{12}}: put", said
    )
    assert (run / STATUS_FILE).read_bytes() == status  # before anything started
    with pytest.raises(RunError, match="is the base policy"):  # a learner that starts again
        learn(config, RunDir(run), True, find_inputs(config), lambda number: None, StopRequest())
    assert figures(run) == before
    (about,) = run.glob("checkpoints/*/policy/PROVENANCE.json")
    about.write_text(json.dumps({"seed": 0}))  # as a release that told none
    check_same_base(RunDir(run), base_policy_of(find_inputs(config).checkpoint))


def test_a_frame_that_is_not_finite_is_refused_before_anything_starts(tmp_path, capsys):
    with EpisodeWriter(tmp_path / "data", Recording("lift the can", 20)) as writer:
        for number in range(3):
            columns = recorded_episode(np.random.default_rng(0), 6)
            columns["action"][3, 0] = np.nan if number == 2 else 0.0
            writer.add(columns)
        writer.finish()
    out = f"--output_dir={tmp_path / 'run'}"
    for dry in (["--dry_run"], []):
        assert main(["finetune", str(tmp_path / "data"), *SMALL, *dry, out]) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path / 'data'}, episode 2: action is not finite in frame 3; leave" in said
    assert not (tmp_path / "run").exists()


def test_weights_and_device_that_cannot_be_used_are_refused_in_a_sentence(
    dataset, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    short, other, spoilt = (embedded_copy(tmp_path / n) for n in ("short", "other", "spoilt"))
    weights = short / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    tensors = load_file(other / "model.safetensors")
    del tensors["model.action_head.bias"]
    save_file(tensors, other / "model.safetensors")
    statistics = next(spoilt.glob("policy_preprocessor_step_*.safetensors"))
    save_file({k: v * torch.nan for k, v in load_file(statistics).items()}, statistics)
    known = [
        (f"--policy.path={spoilt}", f"the processors of {spoilt} have statistics that are not"),
        ("--device=cuda", "device=cuda: PyTorch finds no GPU here; give --device=cpu, or auto"),
        (f"--policy.path={short}", f"{weights} cannot be read ("),
        ("--algorithm.freeze=[nothing]", "algorithm.freeze: no parameter's name begins with 'noth"),
    ]
    found_later = (f"--policy.path={other}", "missing: model.action_head.bias. Copy both again")
    out = f"--output_dir={tmp_path / 'run'}"
    for dry, cases in ((["--dry_run"], known), ([], [*known, found_later])):
        for flag, said in cases:
            assert main(["finetune", dataset, *SMALL, flag, *dry, out]) == 2
            told = capsys.readouterr().err
            assert said in told
            assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert main(["finetune", dataset, "--algorithm.freeze=[model.encoder]", "--dry_run", out]) == 0


def test_tasks_that_the_policy_cannot_be_played_in_are_refused(dataset, tmp_path, caplog):
    config = configured(dataset, tmp_path / "r", "--evaluation.validation_states=1")
    checkpoint, episodes = find_inputs(config)
    needed, here = needed_by(checkpoint, {}), episodes[0].dataset
    check_played(config, needed, [here])
    seeing = dataclasses.replace(needed, shapes={**needed.shapes, FRONT: (3, 48, 64)})
    with pytest.raises(
        ConfigError, match=r"validation_states plays .* needs .*'observation.images"
    ):
        check_played(config, seeing, [here])
    wider = dataclasses.replace(needed, shapes={**needed.shapes, "observation.state": (9,)})
    with pytest.raises(
        ConfigError, match=r"plays .* needs 'observation.state' of shape \(9,\), not"
    ):
        check_played(config, wider, [here])
    with pytest.raises(ConfigError, match="acts in 6 dimensions but the environment takes 7"):
        check_played(config, dataclasses.replace(needed, action_dim=6), [here])
    judged = configured(dataset, tmp_path / "r", "--evaluation.validation_states=1")
    judged.env.reward_classifier = "nowhere"  # evaluations go by the environment's own reward
    check_played(judged, needed, [here])
    fast = SimpleNamespace(root="elsewhere", fps=50)
    check_played(config, needed, [here, fast])
    assert "at 20 steps per second, and elsewhere says 50 frames" in caplog.text
    check_played(configured(dataset, tmp_path / "r"), seeing, [fast])  # nobody plays it


@pytest.mark.parametrize(("planned", "device"), [(1, "cuda"), (2, "cpu")])
def test_a_policy_is_played_where_it_is_trained(monkeypatch, tmp_path, planned, device):
    """But by several learners, whose GPUs need not have room for the whole policy."""
    loaded = []
    monkeypatch.setattr(
        finetune_loop, "load_base_policy", lambda path, device: loaded.append((path, device))
    )
    loop = object.__new__(finetune_loop.FinetuneLoop)
    loop.config, loop.held, loop.states = FinetuneConfig(), None, [0]
    loop.trainer = SimpleNamespace(device="cuda", ranks=Ranks(planned=planned))
    loop.writer = SimpleNamespace(settle=lambda: None)
    loop.player = SimpleNamespace(play=lambda *_: {"task": [SimpleNamespace(success=True)]})
    assert loop.evaluate(tmp_path) == {"eval/success": 1.0}
    assert loaded == [(str(tmp_path / "policy"), device)]


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
