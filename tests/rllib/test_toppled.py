"""Training episodes that end where the target topples, beside evaluations that play on."""

from __future__ import annotations

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.evaluation.requests import Contestant
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.messages import SampleRequest

FLAGS_OF_AN_END = {"terminated": True, "truncated": False, "success": False, "reward": 0.0}
FLAGS = ["--config_path=tabletop", "--runners.num_env_runners=0"]


@pytest.fixture(scope="module")
def runner(ray_cluster):
    config = ResidualSACConfig.of_run(load_config(TrainConfig, FLAGS))
    config.env_config["base_policy"] = {"type": "lerobot", "path": "pld_tabletop_act"}
    runner = config.env_runner_cls(config=config)
    yield runner
    runner.stop()


@pytest.fixture
def everything_topples(monkeypatch):
    """A target that stands is tilted by more than this."""
    monkeypatch.setattr("envs.libero.TOPPLED_TILT", -1.0)


def test_a_toppled_target_ends_a_training_episode_as_a_failure(runner, everything_topples):
    runner.restart_streams(1)
    batch = runner.sample_episodes(SampleRequest(3, base_only=True))
    assert batch.episode_lengths == [1, 1, 1]
    assert [(e.length, e.success) for e in batch.episodes] == [(1, False)] * 3
    columns = {name: batch.columns[name].reshape(3, 2)[:, 0] for name in FLAGS_OF_AN_END}
    for name, expected in FLAGS_OF_AN_END.items():
        assert (columns[name] == expected).all(), name


def test_an_evaluation_plays_on(runner, everything_topples):
    (episode,) = runner.evaluate([0], Contestant(residual=False))
    assert episode.length > 1


@pytest.mark.parametrize(
    "other", [["--env.suite=libero_goal"], ["--env.entry_point=envs.point:PointEnv"]]
)
def test_where_nothing_can_topple_the_setting_is_refused(other):
    with pytest.raises(ConfigError, match=r"env\.terminate_when_toppled is for env\.suite=pld_tab"):
        load_config(TrainConfig, [*FLAGS, *other])
