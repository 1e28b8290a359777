"""Asynchronous sampling and learning: counts, staleness, restore, errors, on a real cluster."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import ray
from update_fixtures import PLAIN

from pld_ray.rllib.asynchronous import AsynchronousLoop
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.learners import LearnerLostError, Learners, Work
from pld_ray.rollout.messages import EnvRunnerError, ReplayBatch

pytestmark = pytest.mark.usefixtures("ray_cluster")


def point_config(num_learners=0, num_env_runners=2, **training):
    config = (
        ResidualSACConfig()
        .environment(env_config={"entry_point": "envs.point:PointEnv"})
        .base_policy(type="none")
        .env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.5)
        .learners(num_learners=num_learners, num_cpus_per_learner=0.5)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 0,
                "warmup_steps": 100,
                "warmup_actions": "random",
                "use_probing": False,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "sample_steps": 100,
                "actor_delay_updates": 0,
                "sampling": "asynchronous",
                "publish_interval": 20,
                **training,
            }
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 150
    return config


def replay_added(algorithm):
    return algorithm.learners.replay_sizes()[0]


def check_debt(algorithm):
    counts = algorithm.progress
    assert counts.stored_steps > 0
    assert counts.updates + counts.update_debt == algorithm.config.utd * counts.stored_steps


def settle(algorithm):
    """Everything submitted is done and counted."""
    algorithm.asynchronous.drain()
    return algorithm


@pytest.fixture(scope="module")
def learning(ray_cluster):
    """Two runners and a learner in an actor of its own, at work."""
    algorithm = point_config(num_learners=1, utd=0.5).build_algo()
    for _ in range(4):
        algorithm.train()
    yield algorithm
    algorithm.stop()


def check_every_stored_step_is_paid_for(algorithm):
    settle(algorithm)
    assert algorithm.phase == "online"
    assert algorithm.env_steps >= 600
    assert algorithm.updates > 100
    assert algorithm.asynchronous.outstanding == 0
    counts = algorithm.progress
    assert counts.updates + counts.update_debt == pytest.approx(0.5 * counts.stored_steps)
    assert counts.update_debt < 1
    warm_up = replay_added(algorithm) - counts.stored_steps
    assert 100 <= warm_up <= counts.collection_env_steps
    # runners act with published weights, not more than an interval behind what they were sent
    assert algorithm.asynchronous.weights.updates > algorithm.updates - 20


def test_every_stored_step_is_paid_for_exactly_once(learning):
    check_every_stored_step_is_paid_for(learning)


@pytest.mark.chaos
def test_every_stored_step_is_paid_for_exactly_once_by_a_learner_in_this_process(build):
    algorithm = build(point_config(utd=0.5))
    for _ in range(4):
        algorithm.train()
    check_every_stored_step_is_paid_for(algorithm)


def test_what_lies_here_is_put_into_the_store_once_for_all_learners(monkeypatch):
    learners = Learners(SimpleNamespace(is_local=False), None, "")
    seen, sent = [], []
    learners.on_store = seen.extend
    monkeypatch.setattr(learners, "call", lambda method, work: sent.append((method, work)))
    here = ReplayBatch({"reward": np.arange(3.0)}, [2])
    there = ReplayBatch(ray.put({}), [2])
    learners.submit(Work([here, there], 4, 0.5))
    ((method, work),) = sent
    assert (method, work.num_updates, work.residual_scale) == ("submit", 4, 0.5)
    assert ray.get(work.batches[0].columns)["reward"].tolist() == [0.0, 1.0, 2.0]
    assert work.batches[1].columns is there.columns
    assert seen == [here, there]  # a buffer's dump reads what was there


def test_the_backlog_leaves_room_for_episodes_that_end_together():
    config = point_config(utd=0.5)
    loop = AsynchronousLoop(config, None, None, None)
    assert loop.backlog_limit(num_runners=3) == 2 * 100 * 0.5  # rounds of sample_steps
    loop.longest_episode = 50
    assert loop.backlog_limit(num_runners=3) == 2 * (3 * 50) * 0.5
    config.env_runners(num_envs_per_env_runner=4)
    assert loop.backlog_limit(num_runners=3) == 2 * (3 * 4 * 50) * 0.5


def test_at_a_control_rate_a_learner_that_is_behind_holds_nobody_up(build, tmp_path):
    # 10 updates owed for each step: without a rate the runner would have to wait
    config = point_config(
        num_env_runners=1, utd=10, sample_steps=10, warmup_steps=20, control_hz=100.0
    )
    config.env_config["kwargs"] = {"episode_length": 10}
    config.min_sample_timesteps_per_iteration = 30
    algorithm = build(config)
    algorithm.initialize()
    counts, loop = algorithm.progress, algorithm.asynchronous
    while loop.outstanding + counts.update_debt <= loop.backlog_limit(1):
        algorithm.training_step()
    steps = counts.env_steps
    while counts.env_steps < steps + 100:
        algorithm.training_step()
        assert algorithm.runners.num_in_flight
        assert loop.outstanding <= loop.backlog_limit(1)  # what a checkpoint waits for
    assert counts.control_steps >= 100
    assert 0 <= counts.late_steps <= counts.control_steps
    settle(algorithm)
    assert counts.update_debt > 0
    assert counts.updates + counts.update_debt == 10 * counts.stored_steps
    assert replay_added(algorithm) == counts.stored_steps + counts.collection_stored_steps
    check_a_checkpoint_goes_on_with_the_same_counts(algorithm, tmp_path)


def test_runners_take_the_weights_that_come_with_a_request(learning):
    algorithm = learning
    algorithm.train()  # what was asked for before the first weights were published is over
    group = algorithm.env_runner_group
    taken = group.foreach_env_runner(lambda r: r.weights_updates, local_env_runner=False)
    assert min(taken) > 0
    result = algorithm.train()
    assert 0 <= result["staleness_mean"] <= result["staleness_max"] <= algorithm.updates


def test_a_checkpoint_goes_on_with_the_same_counts(learning, tmp_path):
    check_a_checkpoint_goes_on_with_the_same_counts(learning, tmp_path)


def check_a_checkpoint_goes_on_with_the_same_counts(algorithm, tmp_path):
    algorithm.save_checkpoint(str(tmp_path))
    counts = ("env_steps", "episodes", "stored_steps", "updates", "update_debt")
    saved = {name: getattr(algorithm.progress, name) for name in counts}
    added = replay_added(algorithm)
    owed = algorithm.config.utd * saved["stored_steps"]
    assert saved["updates"] + saved["update_debt"] == owed
    algorithm.train()
    assert algorithm.env_steps > saved["env_steps"]
    algorithm.load_checkpoint(str(tmp_path))
    assert {name: getattr(algorithm.progress, name) for name in counts} == saved
    assert replay_added(algorithm) == added
    algorithm.train()  # batches that were asked for before are not taken; new ones are
    settle(algorithm)
    check_debt(algorithm)
    stored = algorithm.progress.stored_steps - saved["stored_steps"]
    assert stored > 0
    assert replay_added(algorithm) - added == stored


@pytest.mark.chaos
def test_a_killed_runner_costs_only_what_was_in_flight(build):
    algorithm = build(point_config())
    algorithm.train()
    group = algorithm.env_runner_group
    pids = group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    os.kill(pids[0], signal.SIGKILL)
    while algorithm._counters["total_num_restored_workers"] == 0:
        algorithm.train()
    settle(algorithm)
    check_debt(algorithm)
    assert group.num_healthy_remote_env_runners() == 2


@pytest.mark.chaos
def test_a_stalled_runner_is_replaced_and_nobody_waits_for_it(build):
    algorithm = build(point_config(stall_timeout_s=15.0))
    algorithm.train()
    group = algorithm.env_runner_group
    pids = group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    os.kill(pids[0], signal.SIGSTOP)  # it will be stuck in a request
    steps = algorithm.env_steps
    while algorithm.env_steps < steps + 2000:
        algorithm.train()
    os.kill(pids[0], signal.SIGCONT)
    settle(algorithm)
    check_debt(algorithm)


def test_an_environment_that_cannot_work_stops_the_run_with_its_message(build):
    config = point_config(num_env_runners=1)
    config.environment(env_config={"entry_point": "broken_env:BrokenEnv"})
    algorithm = build(config)
    with pytest.raises(EnvRunnerError, match="no floor to stand on"):
        algorithm.train()


@pytest.mark.chaos
def test_a_dead_learner_is_an_error_of_its_own_kind(build):
    algorithm = build(point_config(num_learners=1))
    algorithm.train()
    (result,) = algorithm.learner_group.foreach_learner(lambda learner: os.getpid())
    pid = result.get()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LearnerLostError):
        algorithm.train()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"sampling": "sometimes"}, "must be synchronous, pipelined or asynchronous"),
        ({"publish_interval": 0}, "publish_interval"),
        ({"max_staleness": 10}, "publish_interval=20"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        point_config(**setting).validate()


def test_asynchronous_sampling_needs_runners():
    with pytest.raises(ValueError, match="num_env_runners"):
        point_config(num_env_runners=0).validate()
