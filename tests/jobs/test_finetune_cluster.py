"""Learners under Ray Train: one of them killed, the same weights; refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import threading
import time

import psutil
import pytest
from mlflow import MlflowClient
from policy_fixtures import save_act
from safetensors.torch import load_file, save_file
from several_ranks import difference
from sharded_data import write_dataset

from pld_ray.config import ConfigError
from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.jobs.finetune import check_finetune, finetune
from pld_ray.runs.run_dir import RunDir
from pld_ray.tracking.mlflow_record import read_record

SMALL = [
    *("--algorithm.batch_size=8", "--total_steps=40", "--evaluation.interval_steps=0"),
    *(
        "--algorithm.learning_rate=1e-5",
        "--checkpoint.interval_steps=5",
        "--tracking.enabled=false",
    ),
]
LEARNERS = ["--learners.num_learners=2", "--learners.whole_parameter_mb=0.001"]


@pytest.fixture
def given(tmp_path):
    save_act(tmp_path / "act")
    write_dataset(tmp_path / "data", (12, 3, 9, 20, 7))
    return [f"--dataset=[{tmp_path / 'data'}]", f"--policy.path={tmp_path / 'act'}"]


def configured(given: list[str], folder: pathlib.Path, *flags: str) -> FinetuneConfig:
    return load_config(FinetuneConfig, [*given, *SMALL, *flags, f"--output_dir={folder}"])


def kill_a_learner(run: pathlib.Path) -> None:
    """SIGKILL for one of them when the run has its first checkpoint."""
    while not list(run.glob("checkpoints/step_*")):  # written by another process
        time.sleep(0.02)
    mine = psutil.Process(os.getpid()).children(recursive=True)
    learners = [process for process in mine if "RayTrainWorker" in process.name()]
    learners = learners or [p for p in mine if "RayTrainWorker" in " ".join(p.cmdline())]
    learners[-1].kill()


@pytest.mark.chaos
def test_a_learner_that_is_killed_changes_nothing_in_the_end(given, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    alone = finetune(configured(given, one, "--algorithm.accumulation=2"))
    killer = threading.Thread(target=kill_a_learner, args=(two,), daemon=True)
    killer.start()
    told = []
    config = configured(given, two, *LEARNERS)
    tracked = dataclasses.replace(config.tracking, enabled=True)
    config = dataclasses.replace(config, tracking=tracked)
    together = finetune(config, on_samples=told.append)
    killer.join(timeout=1)
    assert not killer.is_alive()
    assert (two / "metrics.restarts.jsonl").exists()
    assert together["updates"] == alone["updates"] == 40
    assert together["validation_loss"] == pytest.approx(alone["validation_loss"], rel=1e-5)
    ends = [run / "checkpoints/final/components" for run in (one, two)]
    assert difference(*ends) <= 1e-6
    assert not list(two.glob(".*"))
    assert sum(told) > 0
    record = read_record(two)
    run = MlflowClient(record["tracking_uri"]).get_run(record["run_id"])
    assert (run.info.status, run.data.metrics["updates"]) == ("FINISHED", 40)


def test_more_learners_than_gpus_are_refused_before_ray_starts(given, tmp_path):
    config = configured(given, tmp_path / "r", *LEARNERS, "--learners.num_gpus_per_learner=64")
    with pytest.raises(ConfigError, match=r"2 learners with .*=64 need more GPUs than the"):
        check_finetune(config)
    assert not (tmp_path / "r").exists()


def test_a_checkpoint_of_another_architecture_is_refused_before_anything_starts(given, tmp_path):
    run = tmp_path / "run"
    finetune(dataclasses.replace(configured(given, run), total_steps=1))
    policy = json.loads((tmp_path / "act/config.json").read_text())
    (tmp_path / "act/config.json").write_text(json.dumps({**policy, "dim_feedforward": 64}))
    weights = load_file(tmp_path / "act/model.safetensors")
    name = "model.encoder.layers.0.linear1.weight"
    save_file({**weights, name: weights[name][:64].clone()}, tmp_path / "act/model.safetensors")
    with pytest.raises(
        ConfigError, match=rf"another architecture .*: {name} has shape \[128, 64\]"
    ):
        finetune(RunDir(run).load_config(FinetuneConfig), run)
