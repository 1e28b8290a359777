"""Asynchronous sampling and learning: counts, staleness, restore, errors, on a real cluster."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.rllib.accounting import account, recent_figures
from pld_ray.rllib.algorithm import LearnerLostError
from pld_ray.rllib.asynchronous import AsynchronousLoop
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.messages import EnvRunnerError

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
                "offline_episodes": 0,
                "warmup_steps": 200,
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
    config.min_sample_timesteps_per_iteration = 300
    return config


def replay_added(algorithm):
    return sum(algorithm._on_learner(lambda learner: len(learner.replay.online)))


def settle(algorithm):
    """Everything submitted is done and counted."""
    algorithm.loop.drain()
    return algorithm


@pytest.mark.parametrize("num_learners", [pytest.param(0, marks=pytest.mark.chaos), 1])
def test_every_stored_step_is_paid_for_exactly_once(build, num_learners):
    algorithm = build(point_config(num_learners, utd=0.5))
    for _ in range(4):
        algorithm.train()
    settle(algorithm)
    assert algorithm.phase == "online"
    assert algorithm.env_steps > 600
    assert algorithm.loop.outstanding == 0
    assert algorithm.updates + algorithm.update_debt == pytest.approx(0.5 * algorithm.stored_steps)
    assert algorithm.update_debt < 1
    warm_up = replay_added(algorithm) - algorithm.stored_steps
    assert 200 <= warm_up <= algorithm.collection.env_steps
    # runners act with published weights, not more than an interval behind what they were sent
    assert algorithm.loop.weights.updates > algorithm.updates - 20


def test_the_backlog_leaves_room_for_episodes_that_end_together():
    loop = AsynchronousLoop(SimpleNamespace(config=point_config(utd=0.5)))
    assert loop.backlog_limit(runners=3) == 2 * 100 * 0.5  # rounds of sample_steps
    loop.longest_episode = 50
    assert loop.backlog_limit(runners=3) == 2 * (3 * 50) * 0.5
    loop.algorithm.config.env_runners(num_envs_per_env_runner=4)
    assert loop.backlog_limit(runners=3) == 2 * (3 * 4 * 50) * 0.5


def test_runners_take_the_weights_that_come_with_a_request(build):
    algorithm = build(point_config())
    while algorithm.updates < 100:
        algorithm.train()
    algorithm.train()  # what was asked for before the first weights were published is over
    group = algorithm.env_runner_group
    taken = group.foreach_env_runner(lambda r: r._taken_updates, local_env_runner=False)
    assert min(taken) > 0
    result = algorithm.train()
    assert 0 <= result["staleness_mean"] <= result["staleness_max"] <= algorithm.updates


def test_an_episode_that_is_too_stale_is_counted_and_not_stored():
    config = point_config(max_staleness=100, utd=0.5)
    counters = {"env_steps": 50, "episodes": 4, "stored_steps": 40, "update_debt": 0.5}
    algorithm = SimpleNamespace(
        config=config,
        schedule=ResidualScaleSchedule(config.residual_sac_params()),
        metrics=MetricsLogger(),
        updates=1000,
        recent_episodes=[],
        next_shard=0,
        **counters,
    )
    episode = {"success": True, "length": 3, "probe_steps": 0}
    batch = {
        "columns": {"reward": np.zeros(8)},
        "episode_lengths": [3, 3],
        "episodes": [{**episode, "weights_updates": 899}, {**episode, "weights_updates": 900}],
        "num_env_steps": 6,
    }
    (fed,) = account(algorithm, [batch])
    assert fed["skip"] == [0]
    gained = {name: getattr(algorithm, name) - before for name, before in counters.items()}
    assert gained == {"env_steps": 6, "episodes": 2, "stored_steps": 3, "update_debt": 1.5}
    assert algorithm.metrics.peek("num_episodes_too_stale") == 1


def test_an_episode_that_ended_while_probing_says_nothing_about_the_residual():
    config = point_config(
        residual_scale_schedule="success", residual_scale_init=0.1, residual_scale_success=0.5
    )
    algorithm = SimpleNamespace(
        config=config,
        schedule=ResidualScaleSchedule(config.residual_sac_params()),
        metrics=MetricsLogger(),
        updates=0,
        recent_episodes=[],
        next_shard=0,
        env_steps=0,
        episodes=0,
        stored_steps=0,
        update_debt=0.0,
    )

    def count(success, length, probe_steps, num):
        episode = {"success": success, "length": length, "probe_steps": probe_steps}
        stored = [length - probe_steps] * num if length > probe_steps else []
        batch = {
            "columns": {"reward": np.zeros(sum(stored) + len(stored))},
            "episode_lengths": stored,
            "episodes": [{**episode, "weights_updates": 0}] * num,
            "num_env_steps": num * length,
        }
        account(algorithm, [batch])

    count(True, length=3, probe_steps=3, num=20)  # the base policy's own successes
    assert algorithm.schedule.value(0) == 0.1
    assert "train/success_rate" not in recent_figures(algorithm.recent_episodes)
    count(False, length=8, probe_steps=3, num=5)
    assert algorithm.episodes == 25
    assert algorithm.stored_steps == 25
    figures = recent_figures(algorithm.recent_episodes)
    assert figures["train/success_rate"] == 0
    assert figures["train/episode_len_mean"] == (20 * 3 + 5 * 8) / 25
    count(True, length=8, probe_steps=3, num=15)
    assert recent_figures(algorithm.recent_episodes)["train/success_rate"] == 15 / 20
    assert algorithm.schedule.value(0) == pytest.approx(0.2)  # one window of 20, 15 successes


def test_a_checkpoint_goes_on_with_the_same_counts(build, tmp_path):
    algorithm = build(point_config())
    while algorithm.updates < 50:
        algorithm.train()
    algorithm.save_checkpoint(str(tmp_path))
    counts = ("env_steps", "episodes", "stored_steps", "updates", "update_debt")
    saved = {name: getattr(algorithm, name) for name in counts}
    added = replay_added(algorithm)
    assert saved["updates"] + saved["update_debt"] == saved["stored_steps"]
    algorithm.train()
    algorithm.load_checkpoint(str(tmp_path))
    assert {name: getattr(algorithm, name) for name in counts} == saved
    assert replay_added(algorithm) == added
    algorithm.train()  # batches that were asked for before are not taken; new ones are
    settle(algorithm)
    assert algorithm.updates + algorithm.update_debt == algorithm.stored_steps
    assert replay_added(algorithm) - added == algorithm.stored_steps - saved["stored_steps"]


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
    assert algorithm.updates + algorithm.update_debt == algorithm.stored_steps
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
    assert algorithm.updates + algorithm.update_debt == algorithm.stored_steps


def test_an_environment_that_cannot_work_stops_the_run_with_its_message(build):
    config = point_config()
    config.environment(env_config={"entry_point": "broken_env:BrokenEnv"})
    algorithm = build(config)
    with pytest.raises(EnvRunnerError, match="no floor to stand on"):
        algorithm.train()


@pytest.mark.chaos
def test_a_dead_learner_is_an_error_of_its_own_kind(build):
    algorithm = build(point_config(num_learners=1))
    algorithm.train()
    (pid,) = algorithm._on_learner(lambda learner: os.getpid())
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
