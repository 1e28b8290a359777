"""A residual acts, goes on and is exported with the base policy that it was trained on alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.files.manifest import write_manifest
from pld_ray.jobs.build import build_algorithm
from pld_ray.jobs.distill_teachers import corrected_fingerprint
from pld_ray.jobs.loop_state import LoopState
from pld_ray.policies import EMBEDDED_ACT
from pld_ray.policies.checkpoint import CONFIG, open_checkpoint
from pld_ray.rllib.trained_base import check_trained_on
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.run_dir import RunDir

FLAGS = [
    *("--env.entry_point=envs.point:PointEnv", "--env.kwargs={episode_length: 20}"),
    *("--runners.num_env_runners=0", "--algorithm.hidden_dims=[8,8]", "--tracking.enabled=false"),
    *("--algorithm.offline_episodes=0", "--algorithm.warmup_steps=2", "--total_steps=20"),
    *("--evaluation.held_states=1", "--evaluation.validation_states=1"),
]


def config_of(base, folder, *more):
    return load_config(
        TrainConfig, [*FLAGS, f"--policy.path={base}", f"--output_dir={folder}", *more]
    )


def saved_run(folder, base, *more):
    """A run that was stopped as it began, trained on the base policy in a folder."""
    run, config = RunDir(folder), config_of(base, folder, *more)
    run.create(config)
    algorithm = build_algorithm(config)
    try:
        state = asdict(LoopState.begin(config))
        run.save_checkpoint(algorithm.save_checkpoint, "interrupted", state)
    finally:
        algorithm.stop()
    return run


def change(base):
    """Another policy, which plays as the first."""
    config = base / CONFIG
    config.write_text(config.read_text() + "\n")


@pytest.fixture
def run(ray_cluster, tmp_path):
    return saved_run(tmp_path / "run", shutil.copytree(EMBEDDED_ACT, tmp_path / "base"))


def test_another_base_policy_in_its_place_is_refused(run, tmp_path, capsys):
    change(tmp_path / "base")
    checkpoint = run.checkpoints / "interrupted"
    was, now = (open_checkpoint(path).fingerprint()[:12] for path in (None, tmp_path / "base"))
    said = (
        f"{checkpoint} was trained on the base policy {was}, and policy.path={tmp_path / 'base'} "
        f"is {now} now: put the former back, or write its place as policy.path into "
        f"{run.path / 'config.yaml'}"
    )
    for argv in (
        ["train", f"--resume={run.path}"],
        ["eval", f"--checkpoint={checkpoint}"],
        ["collect", f"--checkpoint={checkpoint}", f"--root={tmp_path / 'data'}", "--episodes=1"],
        ["export", str(run.path), f"--to={tmp_path / 'out'}"],
    ):
        assert main(argv) == 2, argv
        assert said in capsys.readouterr().err, argv
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=f"trained on the base policy {was}"):
        corrected_fingerprint(run, str(tmp_path / "base"))


def test_who_was_trained_without_one_is_not_asked_for_its_place(tmp_path):
    (tmp_path / PROGRESS_FILE).write_text('{"base_policy": "none"}')
    with pytest.raises(
        ConfigError, match=r"trained without a base policy: write policy\.type=none"
    ):
        check_trained_on(tmp_path, open_checkpoint(None).fingerprint(), None)


def test_it_may_lie_elsewhere(run, tmp_path):
    moved = (tmp_path / "base").rename(tmp_path / "moved")
    run.create(config_of(moved, run.path))
    assert main(["train", f"--resume={run.path}"]) == 0
    assert corrected_fingerprint(run, str(moved)) == open_checkpoint(None).fingerprint()
    progress = json.loads((run.checkpoints / "final" / PROGRESS_FILE).read_text())
    assert progress["base_policy"] == open_checkpoint(None).fingerprint()


def test_a_checkpoint_of_an_older_release_is_taken(run, tmp_path):
    change(tmp_path / "base")
    checkpoint = run.checkpoints / "interrupted"
    progress = json.loads((checkpoint / PROGRESS_FILE).read_text())
    del progress["base_policy"]
    (checkpoint / PROGRESS_FILE).write_text(json.dumps(progress))
    write_manifest(checkpoint)
    assert main(["eval", f"--checkpoint={checkpoint}"]) == 0
    corrected_fingerprint(run, str(tmp_path / "base"))


def test_a_run_without_a_base_policy_goes_on(ray_cluster, tmp_path):
    flags = ["--policy.type=none", "--algorithm.warmup_actions=random"]
    run = saved_run(tmp_path / "run", EMBEDDED_ACT, *flags)
    assert main(["train", f"--resume={run.path}"]) == 0
