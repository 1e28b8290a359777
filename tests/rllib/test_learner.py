"""The learner's named methods, without a cluster: store, train, initialise, refuse, remember."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.exceptions import RayActorError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from update_fixtures import PLAIN

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.data.norm_stats import NormStats
from pld_ray.data.normalizer import Normalizer
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.intake import ReturnRangeError, with_scaled_reward
from pld_ray.rllib.learners import LearnerLostError, Learners, Work
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.rounds import Rounds
from pld_ray.rollout.messages import ReplayBatch

LENGTH = 12


def make_learner(**training):
    config = (
        ResidualSACConfig()
        .base_policy(type="none")
        .training(
            **{
                **PLAIN,
                "batch_size": 8,
                "hidden_dims": [8, 8],
                "residual_dims": [],
                "actor_delay_updates": 0,
                **training,
            }
        )
        .debugging(seed=1, log_level="ERROR")
    )
    action = gym.spaces.Box(-1, 1, (2,), np.float32)
    state = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    observation = gym.spaces.Dict({"observation.state": state, "base_action": action})
    config.env_config = {"entry_point": "envs.point:PointEnv"}
    learner = config.build_learner(spaces={DEFAULT_MODULE_ID: (observation, action)})
    learner.build()
    return learner


@pytest.fixture
def learner():
    return make_learner()


def episodes(count=2, seed=0, reward=1.0):
    """Columns of episodes that end with this reward."""
    rng, rows = np.random.default_rng(seed), count * (LENGTH + 1)
    columns = {
        "observation.state": rng.normal(size=(rows, 3)),
        "base_action": rng.uniform(-1, 1, (rows, 2)),
        "action": rng.uniform(-1, 1, (rows, 2)),
        "reward": np.zeros(rows),
        "residual_scale": np.ones(rows),
    }
    columns = {name: np.float32(value) for name, value in columns.items()}
    columns |= {name: np.zeros(rows, bool) for name in ("terminated", "truncated", "intervened")}
    last = np.arange(count) * (LENGTH + 1) + LENGTH - 1
    columns["reward"][last] = reward
    columns["terminated"][last] = True
    return columns, [LENGTH] * count


def weights(learner):
    return {name: value.clone() for name, value in learner.networks.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_episodes_go_to_their_ring_and_those_to_skip_do_not(learner):
    columns, lengths = episodes(3)
    stored = learner.store(
        [ReplayBatch(columns, lengths, skip=[1]), ReplayBatch(*episodes(1), "offline")]
    )
    assert (stored.lost_steps, stored.online, stored.offline) == (0, 2 * LENGTH, LENGTH)
    kept = np.delete(columns["observation.state"].reshape(3, LENGTH + 1, 3), 1, axis=0)
    np.testing.assert_array_equal(learner.replay.online.observations(), kept[:, :-1].reshape(-1, 3))


def test_steps_that_were_lost_on_the_way_are_told_once(learner, monkeypatch):
    monkeypatch.setattr("pld_ray.rllib.intake.fetch_columns", lambda columns: None)
    assert learner.store([ReplayBatch(None, [5, 7], skip=[0])]).lost_steps == 7
    assert learner.stored().lost_steps == 0


def test_training_moves_the_networks_and_waits_for_data(learner):
    before = weights(learner)
    assert learner.train(5, residual_scale=0.25) == {}
    assert learner.networks.residual_scale == 0.25
    learner.networks.residual_scale.copy_(before["residual_scale"])
    assert same(before, weights(learner))
    learner.store([ReplayBatch(*episodes())])
    metrics = learner.train(5)
    assert np.isfinite(list(metrics.values())).all()
    assert {"critic_loss", "actor_loss", "alpha"} <= metrics.keys()
    assert not same(before, weights(learner))
    with pytest.raises(NotImplementedError, match=r"store\(\) and train\(\)"):
        learner.update()


def test_a_nan_is_refused_or_stops_the_update_which_names_it_and_saves_the_batch(learner, tmp_path):
    columns, lengths = episodes()
    bad = {**columns, "reward": np.where(np.arange(len(columns["reward"])) == 3, np.nan, 0)}
    with pytest.raises(ValueError, match=r"column 'reward' holds a NaN.*episode 0, row 3"):
        learner.store([ReplayBatch(bad, lengths)])
    learner.store([ReplayBatch(columns, lengths)])
    with torch.no_grad():
        next(learner.networks.critic.parameters()).view(-1)[0] = np.nan
    before = weights(learner)
    with pytest.raises(
        RuntimeError, match=r"critic_loss is not finite.*the batch is in .*safetens"
    ):
        learner.train(200, failure_dir=str(tmp_path))
    assert list(tmp_path.glob("nonfinite_critic_loss_*.safetensors"))
    for name, value in weights(learner).items():
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(before[name])), name


def test_calql_refuses_data_without_a_success():
    learner = make_learner(calql_steps=5, offline_episodes=1, calql_num_actions=2)
    with pytest.raises(ValueError, match="offline buffer is empty"):
        learner.initialize_critic(1)
    learner.store([ReplayBatch(*episodes(reward=0.0), "offline")])
    learner.fit_normalizer()
    with pytest.raises(ValueError, match="no episode of the offline buffer has a positive reward"):
        learner.initialize_critic(1)
    with pytest.raises(ValueError, match=r"returns between .* and 3 .*value_range=\[0.0, 1.0\]"):
        learner.store([ReplayBatch(*episodes(reward=3.0), "offline")])


def test_a_learner_without_a_success_stops_calql_on_all_of_them(monkeypatch):
    learner = make_learner(calql_steps=5, offline_episodes=1, calql_num_actions=2)
    asked = []

    def another_has_none(value):
        asked.append(value)
        return False

    monkeypatch.setattr(
        type(learner.shard), "all_true", lambda self, value: another_has_none(value)
    )
    with pytest.raises(ValueError, match="offline buffer is empty"):
        learner.initialize_critic(1)
    learner.store([ReplayBatch(*episodes(), "offline")])
    learner.fit_normalizer()
    with pytest.raises(ValueError, match="another learner's share of the offline buffer holds no"):
        learner.initialize_critic(1)
    assert asked == [False, True]  # it tells the others, too: they would wait for its gradients


def test_rates_are_the_configuration_s_and_moments_the_checkpoint_s(learner, tmp_path):
    """Of a population the copy of a trial goes on from the donor's checkpoint."""
    learner.store([ReplayBatch(*episodes())])
    learner.train(3)
    learner.save(str(tmp_path))
    own = {"critic_lr": 1e-5, "actor_lr": 2e-5, "temperature_lr": 3e-5, "weight_decay": 0.25}
    other = make_learner(**own)
    other.load(str(tmp_path))
    made = other.gradient_steps.optimizers
    donor = learner.gradient_steps.optimizers
    for name, rate in (("critic", 1e-5), ("actor", 2e-5), ("temperature", 3e-5)):
        (group,) = made[name].param_groups
        assert group["lr"] == rate, name
        assert group["weight_decay"] == (0.0 if name == "temperature" else 0.25)
        moments, theirs = (
            [o.state[p]["exp_avg"] for g in o.param_groups for p in g["params"]]
            for o in (made[name], donor[name])
        )
        assert all(map(torch.equal, moments, theirs))


class Group:
    """Learners of this process, as RLlib has them."""

    is_local = True

    def __init__(self, *learners):
        self.learners = learners

    def foreach_learner(self, call, **kwargs):
        return [
            SimpleNamespace(ok=True, get=partial(call, each, **kwargs)) for each in self.learners
        ]

    def __len__(self):
        return len(self.learners)


def test_the_replay_of_all_learners_is_counted_and_as_it_is_now():
    pair = [make_learner(), make_learner()]
    metrics = MetricsLogger(root=True)
    learners = Learners(Group(*pair), metrics, "")
    for count in (2, 3):
        learners.store([ReplayBatch(*episodes(count))])
    held = metrics.peek(("learners", "__all_modules__", "replay_online"))
    assert held == sum(len(each.replay.online) for each in pair) == learners.replay_sizes()[0] > 0


def test_no_update_is_paid_for_before_every_learner_has_something_to_learn_from():
    pair = [make_learner(), make_learner()]
    learners = Learners(Group(*pair), MetricsLogger(root=True), "")
    progress = Progress(ResidualScaleSchedule(pair[0].params), 1.0, 0)
    progress.update_debt = 7.5
    rounds = Rounds(False, progress, learners, None)
    batch = ReplayBatch(*episodes())
    pair[0].write([batch])  # an episode goes to the learner whose turn it is
    rounds._update()
    assert (progress.updates, progress.update_debt) == (0, 7.5)
    pair[1].write([batch])
    rounds._update()
    assert (progress.updates, progress.update_debt) == (7, 0.5)
    assert [each.gradient_steps.updates for each in pair] == [7, 7]


def test_that_demonstrations_leave_the_offline_ring_is_said_once(caplog):
    learner = make_learner(offline_capacity=2 * (LENGTH + 1) + 7)

    def said():
        return [r.message for r in caplog.records if "the offline replay is full" in r.message]

    learners = Learners(Group(learner), MetricsLogger(root=True), "")
    learners.store([ReplayBatch(*episodes(), "offline"), ReplayBatch(*episodes(9))])
    columns, lengths = episodes(1)
    columns["intervened"][[2, 3]] = True  # seen by windows of them: rows 2 to 6
    helped = ReplayBatch(columns, lengths, "offline", starts="intervened")
    learners.store([helped])
    offline = learner.replay.offline
    assert learner.params.return_steps == 3
    assert (offline.episode_lengths, len(offline)) == ([LENGTH, LENGTH, 4], 2 * LENGTH + 2)
    assert not said()
    for _ in range(2):
        learners.store([helped])
    assert len(said()) == 1
    assert offline.episode_lengths[0] == LENGTH
    assert offline.episode_lengths[1:] == [4, 4, 4]


def test_what_a_person_did_is_stored_as_far_as_an_actor_that_waits_learns_from_it():
    learner = make_learner(n_step=2, actor_delay_n_step=6, actor_delay_updates=5)
    columns, lengths = episodes(1)
    columns["intervened"][[2, 3]] = True
    learner.store([ReplayBatch(columns, lengths, "offline", starts="intervened")])
    assert learner.replay.offline.episode_lengths == [1 + 6]


def test_returns_of_a_person_are_those_of_the_whole_episode():
    learner = make_learner(success_imitation=0.1)
    columns, lengths = episodes(1)
    columns["intervened"][[2, 3]] = True
    columns["success"] = columns["terminated"].copy()
    learner.store([ReplayBatch(columns, lengths, "offline", starts="intervened")])
    ring = learner.replay.offline
    rows = ring.start_rows()
    expected = [0.98 ** (LENGTH - 1 - t) for t in (2, 3)]
    assert ring.column("mc_return", rows).tolist() == pytest.approx(expected)
    assert ring.column("succeeded", rows).all()


def test_a_lost_learner_is_told_before_the_failures_that_follow_from_it():
    """The others' collectives fail as it dies, those of lower rank before it in the order."""

    class Group:
        def foreach_learner(self, call, **kwargs):
            lost = RayActorError(error_msg="the node is gone")
            return [
                SimpleNamespace(ok=False, get=lambda: RuntimeError("Connection reset by peer")),
                SimpleNamespace(ok=False, get=lambda: lost),
            ]

    with pytest.raises(LearnerLostError, match="a learner is gone"):
        Learners(Group(), MetricsLogger(root=True), "").call("drain")


def test_what_is_saved_goes_on_with_the_same_numbers(learner, tmp_path):
    learner.store([ReplayBatch(*episodes())])
    learner.train(3)
    learner.set_temperature(0.0125)
    learner.save(str(tmp_path))
    other = make_learner()
    other.load(str(tmp_path))
    assert float(other.networks.log_alpha.exp()) == pytest.approx(0.0125)
    assert learner.train(3) == other.train(3)
    assert same(weights(learner), weights(other))


def test_nothing_of_a_learner_is_left_when_its_group_has_ended():
    """RLlib ends one of this process so; its thread would update on, and hold the replay."""
    learner = make_learner()
    learner._publish = lambda updates: None  # there is no Ray
    learner.store([ReplayBatch(*episodes())])
    learner.start_updating(publish_interval=10**6, updates=0)
    learner.submit(Work(num_updates=10**6))
    while not learner.poll(wait_s=60).updates:
        pass
    (thread,) = (t for t in threading.enumerate() if t.name == "updates")
    group = LearnerGroup.__new__(LearnerGroup)
    group.config, group._learner = SimpleNamespace(num_learners=0), learner
    group.shutdown()
    group.shutdown()  # as its `__del__` may
    assert not thread.is_alive()
    assert learner.thread is None
    ring = weakref.ref(learner.replay)
    del learner, group
    gc.collect()
    assert ring() is None


def test_what_a_runner_takes_holds_no_critic_and_every_version(learner):
    state = learner.get_state(components="rl_module", inference_only=True)
    names = {name.split(".")[0] for name in state["rl_module"][DEFAULT_MODULE_ID]}
    assert {"actor", "normalizer", "residual_scale", "action_low"} <= names
    assert not names & {"critic", "target_critic", "target_encoder", "log_alpha"}
    assert state["weights_seq_no"] == 0  # a runner takes whatever it is given


def test_calql_without_demonstrations_is_refused_with_the_settings():
    with pytest.raises(ValueError, match=r"calql_steps=5.*offline_episodes=0"):
        ResidualSACConfig().training(calql_steps=5, offline_episodes=0).validate()


@pytest.mark.parametrize("mode", ["zscore", "quantile"])
def test_given_statistics_take_the_place_of_the_states_own(learner, mode):
    """Both forms, through the network that acts; others would still be of the data."""
    vectors = np.random.default_rng(0).uniform(1, 2, (4, 3)).cumsum(0)
    stats = NormStats(*vectors[[0, 1, 0, 3]])
    columns, lengths = episodes()
    learner.store([ReplayBatch(columns, lengths)])
    learner.fit_normalizer(Normalizer(stats, mode))
    state = np.array([[2.0, 4.0, 6.0]], np.float32)
    expected = {
        "zscore": (state - stats.mean) / (stats.std + 1e-6),
        "quantile": 2 * (state - stats.q01) / (stats.q99 - stats.q01 + 1e-6) - 1,
    }
    found = learner.networks.normalizer(torch.from_numpy(state))
    assert np.allclose(found, expected[mode], rtol=1e-6, atol=1e-6)
    learner.fit_normalizer()
    assert not np.allclose(learner.networks.normalizer(torch.from_numpy(state)), expected[mode])


def test_what_is_stored_offline_too_is_lost_once(learner, monkeypatch):
    monkeypatch.setattr("pld_ray.rllib.intake.fetch_columns", lambda columns: None)
    batches = [ReplayBatch(None, [5], buffer) for buffer in ("online", "offline")]
    assert learner.store(batches).lost_steps == 5


def test_the_reward_is_scaled_and_then_shifted():
    scaled = with_scaled_reward({"reward": np.float32([0, 1])}, 10.0, -1.0)["reward"]
    assert scaled.tolist() == [-1.0, 9.0]
    assert scaled.dtype == np.float32


def test_a_batch_of_which_nothing_is_kept_is_not_fetched(learner, monkeypatch):
    monkeypatch.setattr("pld_ray.rllib.intake.fetch_columns", lambda columns: 1 / 0)
    stored = learner.store([ReplayBatch(None, [5, 7], skip=[0, 1])])
    assert (stored.lost_steps, stored.online) == (0, 0)


def test_only_returns_that_are_new_are_compared_with_the_critic_s_range():
    """And both ends of it; what was stored before has been looked at."""
    learner = make_learner(critic_atoms=11)
    learner.store([ReplayBatch(*episodes(2))])
    for reward, words in ((3.0, "and 3 lie outside"), (-3.0, "between -3 and")):
        with pytest.raises(ReturnRangeError, match=words):
            learner.store([ReplayBatch(*episodes(reward=reward))])
    with pytest.raises(ValueError, match=r"column 'reward' holds a NaN or an infinity in episode"):
        learner.store([ReplayBatch(*episodes(reward=np.inf))])


def test_a_reward_is_shifted_that_is_not_scaled():
    given = {"reward": np.float32([0, 1])}
    assert with_scaled_reward(given, 1.0, -1.0)["reward"].tolist() == [-1.0, 0.0]
    assert with_scaled_reward(given, 2.0, 0.0)["reward"].tolist() == [0.0, 2.0]
    assert with_scaled_reward(given, 1.0, 0.0) is given
