"""The env runner alone, in this process: what it samples, evaluates and answers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import ray

from envs.point import STEP_LENGTH
from pld_ray.evaluation.requests import Contestant
from pld_ray.rllib import env_runner
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.env_runner import OffPolicyEnvRunner
from pld_ray.rllib.intake import fetch_columns
from pld_ray.rllib.learners import Learners
from pld_ray.rllib.runners import Runners
from pld_ray.rollout.device import DevicePerson
from pld_ray.rollout.messages import (
    EnvRunnerError,
    Failure,
    ReplayBatch,
    SampleRequest,
    without_failures,
)

LENGTH = 20


@pytest.fixture(scope="module")
def runner(ray_cluster):
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": LENGTH}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(hidden_dims=[8], residual_dims=[], residual_scale=1.0, probe_steps=6)
        .debugging(seed=3, log_level="ERROR")
    )
    config.env_config["base_policy"] = {"type": "none"}
    runner = config.env_runner_cls(config=config)
    yield runner
    runner.stop()


def test_a_batch_holds_the_takeovers_of_finished_episodes(runner):
    runner.restart_streams(1)
    batch = runner.sample_episodes(SampleRequest(5 * LENGTH, weights_updates=7, generation=4))
    assert batch.num_env_steps >= 5 * LENGTH
    assert batch.generation == 4
    assert len(batch.episodes) >= 2
    lengths = [e.length - e.probe_steps for e in batch.episodes]
    assert batch.episode_lengths == [n for n in lengths if n > 0]
    assert {e.weights_updates for e in batch.episodes} == {7}
    assert len(batch.columns["reward"]) == sum(n + 1 for n in batch.episode_lengths)
    assert batch.columns["residual_scale"].max() == 1


@pytest.mark.parametrize("num_learners", [0, 1])
def test_columns_come_along_unless_learners_fetch_them(runner, monkeypatch, num_learners):
    config = runner.config.copy(copy_frozen=False).learners(num_learners=num_learners)
    monkeypatch.setattr(runner, "config", config)
    batch = runner.sample_to_store(SampleRequest(3 * LENGTH, base_only=True))
    assert isinstance(batch.columns, ray.ObjectRef) == (num_learners > 0)
    rows = fetch_columns(batch.columns)["reward"]
    assert len(rows) == sum(n + 1 for n in batch.episode_lengths) > 0


def test_observations_go_to_the_base_policy_alone_and_do_not_come_back(runner):
    def reply(method, episodes, task):
        asked.extend(set(episode) for episode in episodes)
        answers.extend(runner.reply(method, episodes=episodes, task=task))
        return answers

    asked, answers = [], []
    local = SimpleNamespace(reply=reply)
    group = SimpleNamespace(
        num_remote_env_runners=lambda: 0, healthy_env_runner_ids=list, local_env_runner=local
    )
    bare = {name: np.zeros((3, 7), np.float32) for name in ("observation.state", "action")}
    bare["reward"] = np.zeros(3)
    known = {**bare, "base_action": np.ones((3, 7))}
    labelled = Runners(group, None, runner.config).label_episodes([known, bare], "reach")
    assert asked == [{"action", "reward", "base_action"}, set(bare)]
    assert [set(made) for made in answers] == [set(), {"base_action"}]
    assert labelled[0] == known
    assert labelled[1].keys() == known.keys()
    assert not labelled[1]["base_action"].any()


def test_columns_of_two_batches_are_put_into_the_store_once(ray_cluster):
    columns = {"reward": np.zeros(3)}
    batches = [ReplayBatch(columns, [2], "offline"), ReplayBatch(columns, [2])]
    one, other = Learners(SimpleNamespace(is_local=False), None, "")._shared(batches)
    assert one.columns is other.columns
    assert fetch_columns(one.columns).keys() == columns.keys()


def test_the_same_seed_repeats_the_episodes(runner):
    batches = []
    for _ in range(2):
        runner.restart_streams(5)
        batches.append(runner.sample_episodes(SampleRequest(3 * LENGTH, base_only=True)))
    assert batches[0].episodes == batches[1].episodes
    for name, column in batches[0].columns.items():
        np.testing.assert_array_equal(column, batches[1].columns[name])


def impossible_steps(batch):
    """Steps of a batch's episodes after which the point is not where its action moves it."""
    state, action = (batch.columns[name][:, :3] for name in ("observation.state", "action"))
    moved = np.abs(state[:-1] + STEP_LENGTH * action[:-1] - state[1:]).max(axis=1) < 1e-4
    last = np.cumsum([n + 1 for n in batch.episode_lengths]) - 1  # rows of final frames
    return [row for row in np.flatnonzero(~moved) if row not in last]


def sampled(runner, **kwargs):
    return runner.sample(explore=False, **kwargs)


@pytest.mark.parametrize("asked", [{"num_episodes": 2}, {"num_timesteps": 7}])
def test_rllibs_own_sampling_spoils_no_episode_of_a_request(runner, asked):
    runner.restart_streams(6)
    batches = []
    for _ in range(3):
        batches.append(runner.sample_episodes(SampleRequest(3 * LENGTH)))  # ends within episodes
        for episode in sampled(runner, **asked):
            state = episode.get_observations()["observation.state"][:, :3]
            steps = STEP_LENGTH * episode.get_actions()[:, :3].clip(-1, 1)
            np.testing.assert_allclose(state[1:], state[:-1] + steps, atol=1e-5)
    assert all(batch.episode_lengths for batch in batches)
    assert not any(impossible_steps(batch) for batch in batches)


def test_rllibs_own_sampling_goes_on_with_its_episodes_until_a_request_comes(runner):
    first, second = (sampled(runner, num_timesteps=6) for _ in range(2))
    assert {episode.id_ for episode in second} == {episode.id_ for episode in first}
    runner.sample_episodes(SampleRequest(1, base_only=True))
    third = sampled(runner, num_timesteps=6)
    assert not {episode.id_ for episode in third} & {episode.id_ for episode in first}
    assert {len(episode) for episode in third} == {3}


def test_metrics_are_sent_as_often_as_they_are_asked_for(runner):
    now, soon = (
        runner.sample_episodes(SampleRequest(1, base_only=True, metrics_interval_s=interval))
        for interval in (0.0, 60.0)
    )
    assert now.metrics is not None
    assert soon.metrics is None


def test_each_init_state_is_played_in_order_and_beta_is_put_back(runner):
    scale = runner.module.networks.residual_scale
    episodes = runner.evaluate([3, 0, 3], Contestant(residual_scale=0.0))
    assert [e.init_state_id for e in episodes] == [3, 0, 3]
    assert episodes == runner.evaluate([3, 0, 3], Contestant(residual=False))
    assert scale == 1


def test_what_fails_in_a_remote_runner_is_a_message(runner):
    reply = runner.reply("evaluate", init_state_ids=["third"], contestant=Contestant())
    assert isinstance(reply, Failure)
    with pytest.raises(EnvRunnerError, match="an env runner cannot go on: "):
        without_failures([reply])


def test_whoever_holds_a_device_is_waited_for_until_the_run_ends(monkeypatch):
    """The person of the episodes to come too, who sits down after the run has begun."""
    people = [DevicePerson(SimpleNamespace(close=lambda: None), *np.ones((2, 7))) for _ in "ab"]
    given = iter(people)
    monkeypatch.setattr(env_runner, "make_intervenor", lambda *_: next(given))
    runner = OffPolicyEnvRunner.__new__(OffPolicyEnvRunner)
    runner.env = SimpleNamespace(unwrapped=SimpleNamespace(robots=[]))
    runner.config, runner._rng = SimpleNamespace(intervention=None), None

    def check():
        pass

    assert runner.person(SampleRequest(1, intervene=True)) is people[0]
    runner.end_waits_with(check)
    assert people[0].on_wait is check
    assert runner.person(SampleRequest(1, intervene=True)) is people[1]
    assert people[1].on_wait is check
