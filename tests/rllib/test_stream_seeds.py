"""No placement is played for two purposes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from update_fixtures import PLAIN

from pld_ray.jobs.collect import Goal, record
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.env_runner import OffPolicyEnvRunner
from pld_ray.rllib.stream_seed import ONLINE, RECORDED, RESTORED, stream_seed

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Writer(list):
    """Keeps where each episode began."""

    successes = ()

    def add(self, columns, about):
        self.append(tuple(columns["observation.environment_state"][0].tolist()))
        self.successes = (False,) * len(self)


@pytest.fixture(scope="module")
def algorithm(ray_cluster):
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 10}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0)
        .training(
            **PLAIN,
            offline_episodes=0,
            warmup_steps=40,
            warmup_actions="random",
            use_probing=False,
            batch_size=8,
            hidden_dims=[8, 8],
            collection_seed=0,
        )
        .debugging(seed=0, log_level="ERROR")
    )
    built = config.build_algo()
    yield built
    built.stop()


def test_a_run_does_not_begin_with_the_placements_of_its_collection(algorithm, monkeypatch):
    """Both seeds are 0 by default."""
    seeds, restart = [], OffPolicyEnvRunner.restart_streams

    def noted(self, seed):
        seeds.append(seed)
        restart(self, seed)

    monkeypatch.setattr(OffPolicyEnvRunner, "restart_streams", noted)
    algorithm.initialize()
    assert len(seeds) == 2  # the collection's, and the run's own
    assert len(set(seeds)) == 2


def test_what_was_learnt_is_recorded_on_placements_of_its_own(algorithm):
    def begins(actor, seed, episodes=4):
        writer = Writer()
        goal = Goal(episodes=episodes, keep_failures=True)
        record(algorithm, writer, goal, actor, seed, lambda kept, success: None)
        return writer

    learnt, collected = begins("residual", 0), begins("base", 0)
    assert len({*learnt, *collected}) == 8
    assert begins("residual", 0) == learnt
    assert not set(begins("residual", 1)) & set(learnt)
    algorithm.runners.restart(0)  # as a collection of this seed begins
    batches = algorithm.runners.gather(algorithm.runners.request(base_only=True))
    first = batches[0].columns["observation.environment_state"][0]
    np.testing.assert_array_equal(first, np.float32(collected[0]))


def test_every_purpose_and_all_that_there_is_already_make_another_seed():
    numbers = list(itertools.product(range(3), repeat=3))
    purposes = ONLINE, RECORDED, RESTORED
    seeds = {stream_seed(purpose, *each) for purpose in purposes for each in numbers}
    assert len(seeds) == len(purposes) * len(numbers)
