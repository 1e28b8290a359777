"""Recorded, then learnt from: a dataset stands for the successes that a run collects itself."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex

import numpy as np
import pytest
import torch

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.data.dataset import Dataset, open_datasets
from pld_ray.data.demonstrations import recording_of
from pld_ray.data.episode_writer import EpisodeWriter
from pld_ray.data.errors import DataError
from pld_ray.files.lock import FolderLock
from pld_ray.jobs.build import check_environment
from pld_ray.jobs.collect import CollectError, Goal, collect
from pld_ray.jobs.recording import recording_of as make_recording
from pld_ray.rllib import ResidualSACConfig

SUCCESSES = 2
TASK = "lift_the_can"  # 50 steps where the base policy succeeds
EPISODE_LENGTH = 80

SMALL = ["--runners.num_env_runners=0", f"--env.task={TASK}"]
RECORDED = [
    *SMALL,
    *("--runners.num_envs_per_env_runner=2", f"--env.episode_length={EPISODE_LENGTH}"),
]
SHORT = [
    "--env.episode_length=50",
    *("--algorithm.batch_size=16", "--algorithm.hidden_dims=[16, 16]", "--algorithm.utd=0.1"),
    *("--algorithm.offline_episodes=2", "--algorithm.warmup_steps=1", "--total_steps=300"),
    *("--evaluation.held_states=1", "--evaluation.validation_states=1"),
    "--tracking.enabled=false",
]
LESS = {"--successes=20": "--successes=2", "--episodes=50": "--episodes=1"}


def page_commands(name: str) -> list[list[str]]:
    """The commands of docs/data.md, with less to record."""
    text = (pathlib.Path(__file__).parents[2] / "docs/data.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith(f"pld-ray {name} ")]
    return [[LESS.get(word, word) for word in shlex.split(line)[1:]] for line in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory, ray_cluster):
    """The folder in which the page's commands are given, in one Ray."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("page")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def dataset(place):
    """Two successes of the base policy."""
    base, _, _ = page_commands("collect")
    assert main([*base, *RECORDED]) == 0
    return place / "datasets/base"


@pytest.fixture(scope="module")
def settings(place):
    """Of a run whose own collection is what `dataset` holds."""
    config = TrainConfig(seed=0, output_dir=str(place / "run"))
    config.env.task, config.env.episode_length = TASK, EPISODE_LENGTH
    config.runners.num_env_runners = 0
    config.runners.num_envs_per_env_runner = 2
    config.algorithm.offline_episodes = SUCCESSES
    config.algorithm.warmup_steps = 1
    return config


def offline_ring(config: TrainConfig) -> dict[str, np.ndarray]:
    """Rows of the offline ring that a run begins to learn with."""
    algorithm = ResidualSACConfig.of_run(config).build_algo()
    try:
        algorithm.initialize()

        def rows(learner):
            ring = learner.replay.offline
            every = torch.arange(len(ring) + SUCCESSES)  # a final frame each
            return {name: ring.column(name, every) for name in ring.schema.columns}

        (result,) = algorithm.learner_group.foreach_learner(rows)
        return {name: np.asarray(values) for name, values in result.get().items()}
    finally:
        algorithm.stop()


def test_collected_and_given_as_demonstrations_is_the_ring_the_run_would_have_built(
    settings, dataset, tmp_path
):
    own = offline_ring(settings)
    assert own["reward"].sum() == SUCCESSES
    recording = dataset / "meta/recording.json"
    for policy_is_known in (True, False):
        if not policy_is_known:  # base actions are then computed anew along the observations
            recording.rename(dataset / "meta/recording.aside")
        given = offline_ring(dataclasses.replace(settings, demo_path=[str(dataset)]))
        assert given.keys() == own.keys()
        for name in own:
            np.testing.assert_array_equal(given[name], own[name], err_msg=name)
    (dataset / "meta/recording.aside").rename(recording)


def test_the_commands_of_the_page_about_data(place, dataset, capsys):
    """Expert, training from demonstrations, then what was trained: as a reader would type them."""
    _, residual, expert = page_commands("collect")
    assert main([*expert, *RECORDED]) == 0
    found = Dataset(place / "datasets/expert")
    columns = found.columns(["action", "base_action", "residual", "next.success"])
    assert not columns["residual"].any()
    assert np.abs(columns["action"] - columns["base_action"]).max() > 0.1
    assert columns["next.success"].sum() == SUCCESSES == len(found.episodes)
    train, seen, again, scaled = page_commands("train")
    assert main([*train, *SMALL, *SHORT]) == 0, capsys.readouterr().err
    summary = json.loads((place / "outputs/with_demonstrations/summary.json").read_text())
    assert summary["updates"] > 0
    checkpoint = place / "outputs/with_demonstrations/checkpoints/best"
    if not checkpoint.exists():
        checkpoint = checkpoint.with_name("final")
    residual = [
        w if not w.startswith("--checkpoint") else f"--checkpoint={checkpoint}" for w in residual
    ]
    assert main([*residual, "--algorithm.utd=2"]) == 2
    assert "learnt with its run's own configuration; remove --algorithm.utd" in (
        capsys.readouterr().err
    )
    assert main([*residual, "--seed=3", "--env.episode_length=60"]) == 0
    about = recording_of(Dataset(place / "datasets/residual"))
    assert (about["seed"], about["environment"]["episode_length"]) == (3, 60)
    columns = Dataset(place / "datasets/residual").columns(["residual", "residual_scale"])
    assert columns["residual"].any()
    demos = "--demo_path=datasets/base"  # so that nothing has to be collected
    assert main([*seen, demos, *SMALL, *SHORT]) == 0, capsys.readouterr().err
    assert [int(d.root.name) >= 300 for d in open_datasets("outputs/seen/buffer")] == [True]
    assert main([*again, *SMALL, *SHORT]) == 0, capsys.readouterr().err
    (norm_stats,) = [c for c in page_commands("norm-stats") if "datasets/base" in c]
    assert main([*scaled, *SMALL, *SHORT, "--dry_run"]) == 2
    assert "make it with pld-ray norm-stats datasets/base" in capsys.readouterr().err
    assert main(norm_stats) == 0
    assert main([*scaled, *SMALL, *SHORT, "--dry_run"]) == 0, capsys.readouterr().err


def test_a_recording_plays_on_where_training_would_end(place, monkeypatch):
    monkeypatch.setattr("envs.libero.TOPPLED_TILT", -1.0)  # training would end in the first step
    config = load_config(TrainConfig, ["--config_path=tabletop", "--runners.num_env_runners=0"])
    assert config.env.terminate_when_toppled
    config.env.episode_length = 20
    config.demo_path = [str(place / "gone")]  # of training, and not asked for
    writer = collect(config, place / "datasets/toppled", Goal(episodes=1, keep_failures=True))
    (length,) = writer.lengths
    assert length > 1


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ("file", "root holds something already; give a new folder"),
        ("below a file", "above is a file, not a folder"),
        ("foreign", "root holds something already; give a new folder"),
        ("finished", "root holds a finished dataset already; give a new folder"),
        ("other policy", "root was begun with base_policy={'fingerprint': 'x'} and is now asked"),
    ],
)
def test_where_nothing_can_be_recorded_ray_is_not_started(begun, said, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("Ray was started")

    monkeypatch.setattr("pld_ray.jobs.collect.running_algorithm", never)
    config, root = point_config("--policy.type=none"), tmp_path / "root"
    if begun == "file":
        root.write_text("")
    elif begun == "below a file":
        (tmp_path / "above").write_text("")
        root = tmp_path / "above/root"
    elif begun == "foreign":
        (root / "notes").mkdir(parents=True)
    else:
        about = {"actor": "base", "checkpoint": None}
        recording = make_recording(config, ResidualSACConfig.of_run(config), **about)
        other = {**recording.about, "base_policy": {"fingerprint": "x"}}
        EpisodeWriter(root, dataclasses.replace(recording, about=other))
        (root / ".collection/parts/000000").mkdir()  # its first episode
        if begun == "finished":
            progress = root / "collection_progress.json"
            progress.write_text(progress.read_text().replace('"recording",', '"finished",', 1))
    with pytest.raises(DataError, match=said):
        collect(config, root, Goal(episodes=1))


@pytest.mark.parametrize(
    ("begun", "goes_on"),
    [
        ({"checkpoint_checksum": "one"}, True),
        ({}, True),  # of an older release
        ({"checkpoint_checksum": "other"}, False),
        ({"checkpoint": "final", "checkpoint_checksum": "one"}, False),
    ],
)
def test_a_recording_goes_on_with_the_weights_it_was_begun_with(
    begun, goes_on, tmp_path, monkeypatch
):
    """`best` is another checkpoint after each better validation, and in each run."""

    class GoesOnError(Exception):
        pass

    def asked(*args, **kwargs):
        raise GoesOnError

    monkeypatch.setattr("pld_ray.jobs.collect.running_algorithm", asked)
    config, root, best = point_config("--policy.type=none"), tmp_path / "root", tmp_path / "best"
    best.mkdir()
    (best / "manifest.json").write_text('{"checksum": "one"}')
    about = {"actor": "residual", "checkpoint": "best", **begun}
    EpisodeWriter(root, make_recording(config, ResidualSACConfig.of_run(config), **about))
    (root / ".collection/parts/000000").mkdir()  # its first episode
    said = "root was begun with checkpoint.* and is now asked for '(one|best)'; give another folder"
    with pytest.raises(GoesOnError) if goes_on else pytest.raises(DataError, match=said):
        collect(config, root, Goal(episodes=1), "residual", best)


def test_successes_that_do_not_come_are_given_up_though_failures_are_kept(place, monkeypatch):
    monkeypatch.setattr("pld_ray.jobs.collect.MAX_BARREN", 3)
    ended = []

    def on_episode(kept: int, success: bool) -> None:
        ended.append(success)
        assert len(ended) <= 3, "it goes on"

    config, root = point_config("--policy.type=none"), place / "datasets/failures"
    goal = Goal(successes=1, keep_failures=True)
    with pytest.raises(CollectError, match=r"none of 3 episodes .* --episodes=N --keep_failures"):
        collect(config, root, goal, on_episode=on_episode)
    assert len(collect(config, root, Goal(episodes=3, keep_failures=True))) == 3


def point_config(*more: str) -> TrainConfig:
    """Of five steps in an environment that is made at once."""
    flags = ["--env.entry_point=envs.point:PointEnv", "--env.kwargs={episode_length: 5}"]
    return load_config(TrainConfig, [*flags, "--runners.num_env_runners=0", *more])


def test_one_process_at_a_time_records_into_a_folder(place):
    config = point_config()
    root, goal = place / "datasets/shared", Goal(episodes=2, keep_failures=True)

    def stopped(kept: int, success: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as held:  # its traceback keeps the writer
        collect(config, root, goal, on_episode=stopped)
    lock = FolderLock(root / ".collection")
    assert lock.claim(alone=True) is None
    with pytest.raises(DataError, match="shared is in use by this process: wait for it, or give"):
        collect(config, root, goal)
    lock.release()
    assert len(collect(config, root, goal)) == 2
    del held


def test_a_dataset_of_another_environment_is_refused_before_anything_starts(settings, dataset):
    other = dataclasses.replace(settings, demo_path=[str(dataset)])
    check_environment(other)
    info = dataset / "meta/info.json"
    text = info.read_text()
    info.write_text(text.replace('"fps": 20', '"fps": 50'))
    try:
        with pytest.raises(ConfigError, match=r"50 frames per second.*20 steps per second"):
            check_environment(other)
    finally:
        info.write_text(text)
    with pytest.raises(ConfigError, match="is no LeRobotDataset"):
        check_environment(dataclasses.replace(settings, demo_path=[str(dataset / "data")]))


def test_a_finished_recording_is_left_alone(settings, dataset):
    with pytest.raises(DataError, match="finished dataset already"):
        collect(settings, dataset, Goal(successes=SUCCESSES))
