"""A scripted person by commands: record, train with help, learn from what that dumped."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pld_ray.cli import main
from pld_ray.config import TrainConfig
from pld_ray.config.file import load_config
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import Wanted, episodes_in
from pld_ray.jobs.build import build_algorithm
from pld_ray.runs.journal import read_history

pytestmark = pytest.mark.usefixtures("ray_cluster")

POINT = [
    *("--env.entry_point=envs.point:PointEnv", "--env.kwargs={episode_length: 30}"),
    *("--policy.type=none", "--runners.num_env_runners=0", "--runners.num_envs_per_env_runner=2"),
    *("--intervention.patience_steps=5", "--tracking.enabled=false"),
]
TRAIN = [
    *("--config_path=hilserl_fixed_gripper", *POINT, "--total_steps=500"),
    *("--algorithm.batch_size=16", "--algorithm.hidden_dims=[8, 8]", "--algorithm.utd=0.2"),
    "--runners.sample_steps=50",
    *("--evaluation.held_states=1", "--evaluation.validation_states=1"),
    *("--intervention.device=scripted", "--dump_interval=100"),
]
SHAPES = {"observation.state": (8,), "observation.environment_state": (24,)}
WANTED = Wanted(SHAPES, np.full(7, -1.0), np.full(7, 1.0), 20, "point")


def test_record_train_with_help_and_learn_from_what_was_dumped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = ["collect", "--root=hand", "--device=scripted", *POINT, "--successes=2"]
    assert main(record) == 0, capsys.readouterr().err
    hand = Dataset(tmp_path / "hand")
    columns = hand.columns(["intervened", "residual", "next.success", "action"])
    assert columns["next.success"].sum() == 2
    assert columns["intervened"].any()
    assert not columns["action"][~columns["intervened"]].any()  # nobody acted there
    assert [row["intervention_count"] for row in hand.episodes] == [1, 1]

    train = ["train", *TRAIN, "--demo_path=hand", "--output_dir=run"]
    assert main(train) == 0, capsys.readouterr().err
    last = read_history(tmp_path / "run/metrics.jsonl")[-1]
    found = {k: v for row in read_history(tmp_path / "run/metrics.jsonl") for k, v in row.items()}
    assert 0 < found["train/intervention_share"] < 1, last
    assert found["train/assisted_success_rate"] > 0
    assert found["updates"] > 0
    capsys.readouterr()
    assert main(["show", "run", "--json"]) == 0
    assert "train/intervention_share" in json.loads(capsys.readouterr().out)["figures"]

    dumped = [episode for _, _, episode in episodes_in("run/demo_buffer", WANTED, False)]
    demonstrations, assisted = dumped[:2], dumped[2:]
    assert all(episode["start"][:-1].all() for episode in demonstrations)
    assert assisted
    for episode in assisted:
        assert episode["intervened"].any()
        np.testing.assert_array_equal(episode["start"], episode["intervened"])

    settings = [*TRAIN, "--demo_path=run/demo_buffer", "--demo_episodes=all", "--output_dir=again"]
    algorithm = build_algorithm(load_config(TrainConfig, settings))
    try:
        algorithm.initialize()
        assert algorithm.learners.replay_sizes()[1] == sum(
            int(episode["start"][:-1].sum()) for episode in dumped
        )
    finally:
        algorithm.stop()
