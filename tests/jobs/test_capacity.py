"""A ring that could not take one episode is refused before anybody plays one."""

from __future__ import annotations

import pytest
from test_check_data import dataset, refusal

from envs.point import PointEnv
from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.jobs.build import check_environment


class EndlessEnv(PointEnv):
    """An environment that does not say how long its episodes are."""

    def __init__(self) -> None:
        super().__init__()
        del self.episode_length

    def step(self, action):
        self.episode_length = 50
        result = super().step(action)
        del self.episode_length
        return result


@pytest.fixture
def config(tmp_path) -> TrainConfig:
    config = TrainConfig(output_dir=str(tmp_path / "run"))
    config.env.entry_point = "envs.point:PointEnv"
    config.policy.type = "none"
    config.algorithm.gripper = "continuous"
    return config


def test_the_online_ring_holds_an_episode(config):
    config.algorithm.online_capacity = 51
    check_environment(config)
    config.algorithm.online_capacity = 50
    said = refusal(config)
    assert "algorithm.online_capacity=50: must be at least 51" in said
    assert "an episode of 50 steps" in said
    check_environment(config, learns=False)
    check_environment(config, resumes=True)  # it has held its episodes so far
    config.env.kwargs = {"episode_length": 1_000_000}  # as good as none
    check_environment(config)
    config.env.kwargs = {"episode_length": 49}
    check_environment(config)
    config.env.kwargs = {}
    config.env.entry_point = f"{__name__}:EndlessEnv"
    check_environment(config)


def test_a_run_that_goes_on_elsewhere_needs_no_cache_beside_where_it_began(config, tmp_path):
    (tmp_path / "notes.txt").touch()
    config.offline_cache = str(tmp_path)
    assert "no cache of base-policy data" in refusal(config)
    check_environment(config, resumes=True)


def test_a_task_has_the_init_states_that_are_evaluated(config):
    config.evaluation.held_states, config.evaluation.validation_states = 100, 51
    said = refusal(config)
    assert "validation_states = 151, but" in said
    assert "has 150 stored init states" in said
    config.evaluation.validation_states = 50
    check_environment(config)


def test_each_learner_has_a_part_of_the_ring(config):
    config.runners.num_learners = 3
    config.algorithm.online_capacity = 3 * 50
    assert "algorithm.online_capacity=150: must be at least 151" in refusal(config)
    config.algorithm.online_capacity = 3 * 50 + 1
    check_environment(config)


def test_the_offline_ring_holds_an_episode_where_one_may_come(config):
    config.algorithm.offline_capacity = 50
    config.algorithm.offline_episodes, config.algorithm.calql_steps = 0, 0
    check_environment(config)
    config.algorithm.offline_episodes = 5
    assert "algorithm.offline_capacity=50: must be at least 51" in refusal(config)


def test_chunks_too(tmp_path):
    config = ACRLPDTrainConfig(output_dir=str(tmp_path / "run"))
    config.env.entry_point, config.algorithm.hidden_dims = "envs.point:PointEnv", [16]
    config.algorithm.horizon, config.demo_path = 2, [dataset(tmp_path / "good")]
    config.algorithm.offline_capacity = 50
    check_environment(config)
    config.algorithm.online_capacity = 50
    assert "algorithm.online_capacity=50: must be at least 51" in refusal(config)
