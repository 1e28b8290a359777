"""Training episodes that end where the target topples, beside evaluations that play on."""

from __future__ import annotations

import numpy as np
import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.evaluation.requests import Contestant
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.vector_env import InfosPerEnv

HORIZON = 200
TOPPLES = 9
"""A stored state from which the base policy knocks the can over, and saves it yet."""
FLAGS = ["--config_path=tabletop", "--runners.num_env_runners=0"]


@pytest.fixture(scope="module")
def runner(ray_cluster):
    config = ResidualSACConfig.of_run(load_config(TrainConfig, FLAGS))
    config.env_config["base_policy"] = {"type": "lerobot", "path": "pld_tabletop_act"}
    runner = config.env_runner_cls(config=config)
    yield runner
    runner.stop()


def test_a_toppled_target_ends_a_training_episode_as_a_failure(runner):
    runner.restart_streams(1)
    batch = runner.sample_episodes(SampleRequest(350, base_only=True))
    last = np.cumsum(np.array(batch.episode_lengths) + 1) - 2  # of each episode's transitions
    columns = batch.columns
    lost = [
        i
        for i, row in enumerate(last)
        if columns["terminated"][row] and not columns["success"][row]
    ]
    assert 0 < len(lost) < len(last)
    x, y = columns["observation.environment_state"][last + 1][:, 7:9].T
    tilt = np.degrees(np.arccos(1 - 2 * (x**2 + y**2)))
    for i, length in enumerate(batch.episode_lengths):
        assert (tilt[i] > 60) == (i in lost) or columns["success"][last[i]]
        assert (length < HORIZON) == bool(columns["terminated"][last[i]])
        assert columns["reward"][last[i]] == columns["success"][last[i]]
        assert not batch.episodes[i].success or i not in lost


def test_an_evaluation_plays_on(runner):
    base = Contestant(residual=False)
    (whole,) = runner.evaluate([TOPPLES], base)
    training = InfosPerEnv(create_vector_env({**runner.config.env_config, "num_envs": 1}))
    ended = runner.play(training, [TOPPLES], base)[TOPPLES]
    training.close()
    assert ended.length < whole.length
    assert (ended.success, whole.success) == (False, True)


@pytest.mark.parametrize(
    "other", [["--env.suite=libero_goal"], ["--env.entry_point=envs.point:PointEnv"]]
)
def test_where_nothing_can_topple_the_setting_is_refused(other):
    with pytest.raises(ConfigError, match=r"env\.terminate_when_toppled is for env\.suite=pld_tab"):
        load_config(TrainConfig, [*FLAGS, *other])
