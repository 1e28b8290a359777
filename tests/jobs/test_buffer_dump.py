"""What a run dumps is what its rings hold, also after it was killed and went back."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest
import torch
from picture_env import CAMERA, picture

from pld_ray.config import TrainConfig
from pld_ray.data.dataset import open_datasets
from pld_ray.data.demonstrations import Wanted, episodes_in, recording_of
from pld_ray.data.episode_writer import Recording
from pld_ray.jobs.buffer_dump import BufferDump
from pld_ray.jobs.build import build_algorithm
from pld_ray.jobs.training_loop import TrainingLoop
from pld_ray.rollout.messages import ReplayBatch
from pld_ray.runs.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("ray_cluster")

POINT = {
    "env.entry_point": "picture_env:PictureEnv",
    "env.kwargs": "{episode_length: 20, side: 0.15}",
    "policy.type": "none",
    "runners.num_env_runners": 1,
    "runners.sample_steps": 100,
    "algorithm.offline_episodes": 2,
    "algorithm.warmup_steps": 100,
    "algorithm.batch_size": 8,
    "algorithm.hidden_dims": "[8, 8]",
    "algorithm.utd": 0.01,
    "algorithm.probe_steps": 3,
    "evaluation.interval_steps": 0,
    "evaluation.held_states": 1,
    "evaluation.validation_states": 1,
    "checkpoint.interval_steps": 0,
    "tracking.enabled": "false",
    "dump_interval": 700,
}
FLAGS = [f"--{key}={value}" for key, value in POINT.items()]
SHAPES = {"observation.state": (8,), "observation.environment_state": (24,)}
WANTED = Wanted(SHAPES, np.full(7, -1.0), np.full(7, 1.0), 20, "point")


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    from pld_ray.config.file import load_config

    config = load_config(TrainConfig, FLAGS)
    config.output_dir = str(tmp_path_factory.mktemp("dump") / "run")
    return config


@pytest.fixture(scope="module")
def algorithm(config, ray_cluster):
    algorithm = build_algorithm(config)
    yield algorithm
    algorithm.stop()


def rings(algorithm) -> dict[str, dict[str, np.ndarray]]:
    """Ring -> column -> the rows of all its episodes, final frames too, oldest first."""

    def rows(learner):
        replay, found = learner.replay, {}
        for name, ring in (("buffer", replay.online), ("demo_buffer", replay.offline)):
            every = torch.arange(len(ring) + len(ring.episode_lengths))
            found[name] = {column: ring.column(column, every) for column in ring.schema.columns}
        return found

    (result,) = algorithm.learner_group.foreach_learner(rows)
    return result.get()


def assert_dumped_is_stored(run: RunDir, algorithm) -> None:
    for name, ring in rings(algorithm).items():
        episodes = [e for _, _, e in episodes_in(str(run.path / name), WANTED, False)]
        for column in ("observation.state", "base_action", "action", "reward", "residual_scale"):
            dumped = np.concatenate([episode[column] for episode in episodes])
            np.testing.assert_array_equal(dumped, ring[column], err_msg=f"{name} {column}")


def loop_of(config, algorithm) -> TrainingLoop:
    return TrainingLoop(config, RunDir(config.output_dir), algorithm, None, logging.getLogger())


def train(loop: TrainingLoop, steps: int) -> None:
    while loop.algorithm.env_steps < steps:
        loop.iterate()


def test_each_episode_once_however_often_the_run_is_killed(config, algorithm):
    run = RunDir(config.output_dir)
    run.create(config)
    loop = loop_of(config, algorithm)
    train(loop, 1000)
    loop.save("step_000001000")
    checkpoint = algorithm.env_steps
    assert_dumped_is_stored(run, algorithm)
    for killed_at in (1000, 1500):
        train(loop, checkpoint + killed_at)  # closes datasets that a checkpoint does not know
        loop.stop()
        assert max(int(d.root.name) for d in open_datasets(run.path / "buffer")) > checkpoint
        loop = loop_of(config, algorithm)
        loop.restore()
        assert algorithm.env_steps == checkpoint
        names = [int(d.root.name) for d in open_datasets(run.path / "buffer")]
        assert max(names) == checkpoint
        assert_dumped_is_stored(run, algorithm)
    train(loop, checkpoint + 500)
    loop.save("interrupted")
    loop.stop()
    assert_dumped_is_stored(run, algorithm)
    datasets = open_datasets(run.path / "buffer")
    names = [int(dataset.root.name) for dataset in datasets]
    assert names == sorted({*names, checkpoint, algorithm.env_steps})
    for name, following in itertools.pairwise(names):
        assert following in (checkpoint, names[-1]) or following // 700 > name // 700
    about = recording_of(datasets[0])
    assert (about["run"], about["actor"], about["init_states"]) == ("run", "training", "sampled")
    assert about["base_policy"]["fingerprint"]
    columns = [d.columns(["residual", "next.success", "next.done"]) for d in datasets]
    assert columns[-1]["residual"].all()  # probing is not stored
    for dataset in (datasets[0], datasets[-1]):
        length = int(dataset.lengths[0])
        states = dataset.columns(["observation.state"])["observation.state"][:length]
        images = dataset.images(0, CAMERA, range(length))
        assert np.array_equal(images, [picture(state) for state in states])
    demos = [e for _, _, e in episodes_in(str(run.path / "demo_buffer"), WANTED)]
    assert [bool(episode["success"].any()) for episode in demos] == [True, True]


def test_a_run_that_collects_no_episodes_has_none_to_dump(tmp_path):
    dump = BufferDump(tmp_path, Recording("reach the goal", 20), 10)
    dump.take([ReplayBatch({}, [], "offline"), ReplayBatch({}, [9], skip=[0])])
    dump.close(10)
    dump.stop()
    assert list(tmp_path.rglob("info.json")) == []
