"""Offline updates by two learners: one's numbers, one's checkpoint, and one goes on online."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib

import camera_point
import numpy as np
import pytest
from camera_point import CameraPoint
from mlflow import MlflowClient
from point_demonstrations import EPISODE_LENGTH, SIDE, record
from ray.rllib.core import DEFAULT_MODULE_ID
from tiny_policies import save_policy

from pld_ray.algorithm.residual.pretrained import read_networks
from pld_ray.cli import main
from pld_ray.config import ConfigError
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs.offline_stage import OfflineStage, is_due, look_at_environment
from pld_ray.rllib.chunked.learner import ACRLPDLearner
from pld_ray.rllib.chunked.offline import OfflineData
from pld_ray.rllib.of_run import algorithm_config
from pld_ray.runs.run_dir import RunDir
from pld_ray.sharded.ranks import Ranks
from pld_ray.sweep.checks import check_in_one_process
from pld_ray.tracking.mlflow_record import read_record

UPDATES = 6
LAST = f"offline_{UPDATES:09d}"


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    root = tmp_path_factory.mktemp("vla")
    record(root / "demonstrations", episodes=4, env=CameraPoint(EPISODE_LENGTH, SIDE))
    save_policy("smolvla", root)
    return [
        "--env.entry_point=camera_point:CameraPoint",
        f"--env.kwargs={{episode_length: {EPISODE_LENGTH}, side: {SIDE}}}",
        "--env.task=point",
        f"--demo_path={root / 'demonstrations'}",
        "--algorithm.actor=lerobot",
        "--algorithm.actor_task=go",
        f"--algorithm.actor_path={root / 'checkpoint'}",
        f"--algorithm.actor_tokenizer_path={root / 'tokenizer'}",
        "--algorithm.flow_steps=1",
        "--algorithm.batch_size=4",
        "--algorithm.hidden_dims=[16]",
        "--algorithm.num_critics=2",
        "--algorithm.num_candidates=2",
        "--algorithm.target_candidates=2",
        "--algorithm.bc_weight=1.0",
        "--algorithm.grad_clip_norm=1.0",
        "--algorithm.utd=0.01",
        "--algorithm.online_capacity=500",
        "--algorithm.offline_capacity=500",
        f"--algorithm.offline_updates={UPDATES}",
        "--learners.num_learners=2",
        "--learners.whole_parameter_mb=0.001",
        "--learners.checkpoint_updates=4",
        "--runners.num_env_runners=0",
        "--evaluation.held_states=1",
        "--evaluation.validation_states=1",
        "--tracking.enabled=false",
        "--total_steps=30",
    ]


class StopAfter(contextlib.nullcontext):
    """Asks to stop when it has been looked at so often."""

    def __init__(self, looks):
        super().__init__()
        self.left = looks

    @property
    def requested(self):
        self.left -= 1
        return self.left < 0


def alone(config, run, updates):
    """The stage in one process, from the newest checkpoint if there is one."""
    stage = OfflineStage(config, run, Ranks(), None, logging.getLogger("test"))
    stage.begin(run.has_begun)
    return stage.run(StopAfter(updates))


def apart(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not np.array_equal(one[name], other[name])]
    return max((float(np.abs(one[name] - other[name]).max()) for name in different), default=0.0)


def changed(flags, settings):
    keys = {flag.partition("=")[0] for flag in settings}
    return [*(flag for flag in flags if flag.partition("=")[0] not in keys), *settings]


@pytest.fixture(scope="module")
def stopped(flags, tmp_path_factory):
    """A stage in one process that was stopped half-way and went on."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    config = load_config(ACRLPDTrainConfig, [*flags, f"--output_dir={folder}"])
    run = RunDir(folder)
    run.create(config)
    assert is_due(config, run)
    assert not alone(config, run, 3)
    assert is_due(config, run)
    assert alone(config, run, 99)
    assert not is_due(config, run)
    names = sorted(path.name for path in run.checkpoints.iterdir())
    assert names == ["offline_000000004", LAST]
    return config, run.checkpoints / LAST


@pytest.mark.timeout(900)
def test_a_stage_that_was_stopped_ends_where_the_learner_of_one_process_does(stopped):
    config, checkpoint = stopped
    ours = read_networks(checkpoint)
    algorithm = algorithm_config(config)
    assert algorithm.accumulation == 2
    environment = look_at_environment(config, algorithm)
    spec = algorithm.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: environment.spaces})
    learner = ACRLPDLearner(config=algorithm, module_spec=spec)
    learner.build()
    OfflineData(algorithm, learner, environment).step()
    before = {k: v.numpy().copy() for k, v in learner.networks.state_dict().items()}
    learner.train(UPDATES)
    theirs = {k: v.numpy() for k, v in learner.networks.state_dict().items()}
    assert apart(ours, theirs) <= 1e-6
    assert apart(ours, before) > 1e-5
    learner.load(str(checkpoint))
    assert learner.gradient_steps.updates == UPDATES
    learner.train(1)


@pytest.mark.timeout(900)
def test_two_learners_through_ray_train_and_one_process_that_goes_on(
    flags, stopped, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(camera_point.__file__).parent))
    run = RunDir(tmp_path / "run")
    tracked = changed(flags, ["--tracking.enabled=true"])
    assert main(["acrlpd", *tracked, f"--output_dir={run.path}"]) == 0
    record = read_record(run.path)
    client = MlflowClient(record["tracking_uri"])
    assert client.get_run(record["run_id"]).info.status == "FINISHED"
    points = client.get_metric_history(record["run_id"], "updates")
    assert {UPDATES} < {point.value for point in points}  # of the learners and of who goes on
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    offline = next(row for row in rows if row["updates"] == UPDATES)
    assert {"learner/flow_loss", "learner/critic_loss", "replay/offline"} <= offline.keys()
    assert any("eval/offline_success" in row for row in rows)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["env_steps"] >= 30
    assert summary["updates"] > UPDATES
    assert not list(run.path.glob(".*"))
    together, by_one = read_networks(run.checkpoints / LAST), read_networks(stopped[1])
    assert apart(together, by_one) <= 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--learners.num_learners=3"], r"batch_size=4: must be a multiple of .*=3, such as 6"),
        (["--runners.num_learners=2"], "one learner goes on from the checkpoint that they leave"),
        (["--algorithm.offline_updates=0"], "they make the offline updates, and there are none"),
        (["--algorithm.compile_backend=aot_eager"], "what is sharded is not compiled"),
        (["--ray_port=6399"], "the Ray of the offline updates ends with them"),
        (["--algorithm.actor=flow", "--algorithm.actor_path=null"], "and this one is small"),
    ],
)
def test_what_learners_cannot_do_is_refused(flags, settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(ACRLPDTrainConfig, changed(flags, settings))


def test_gpus_that_are_not_there_and_trials_are_refused(flags, tmp_path, capsys):
    gpus = ["--learners.num_gpus_per_learner=64", f"--output_dir={tmp_path / 'r'}"]
    assert main(["acrlpd", *flags, *gpus, "--dry_run"]) != 0
    assert "2 learners with learners.num_gpus_per_learner=64 need more GPUs" in (
        capsys.readouterr().err
    )
    with pytest.raises(ConfigError, match="a trial makes its offline updates in one process"):
        check_in_one_process(load_config(ACRLPDTrainConfig, flags))
