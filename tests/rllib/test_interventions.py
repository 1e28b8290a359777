"""A scripted person in training: what is stored where, and what is counted, on a real Ray."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from local import local_learner
from point_demonstrations import record
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from update_fixtures import PLAIN

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.data.errors import DataError
from pld_ray.files.manifest import write_manifest
from pld_ray.rllib.collection import of_a_person
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.intake import fetch_episodes
from pld_ray.rllib.progress import Progress, read_progress
from pld_ray.rllib.runners import to_store
from pld_ray.rollout.episode import EpisodeSummary
from pld_ray.rollout.messages import EpisodeBatch


def summary(success, steps, count=0, acted=0, updates=0):
    return EpisodeSummary(
        success, steps, 0, weights_updates=updates, intervention_count=count,
        intervention_steps=acted,
    )  # fmt: skip


def counted(episodes, params=None, **counters):
    """A progress after one batch of these episodes, and what it feeds."""
    params = params or ResidualSACParams()
    progress = Progress(ResidualScaleSchedule(params), utd=1.0, **counters)
    lengths = [e.length for e in episodes]
    rows = sum(lengths) + len(lengths)
    columns = {"reward": np.arange(rows), "intervened": np.arange(rows) % 2 == 0}
    batch = EpisodeBatch(columns, lengths, list(episodes), sum(lengths))
    return progress, to_store([batch], progress, MetricsLogger())


def test_an_assisted_episode_is_fed_twice_and_counted_once():
    progress, feed = counted([summary(True, 3), summary(True, 4, count=1, acted=2)])
    offline, online = feed
    assert (offline.buffer, offline.kept, online.buffer, online.kept) == (
        "offline", [4], "online", [3, 4],
    )  # fmt: skip
    assert offline.shard == online.shard
    assert progress.env_steps == progress.stored_steps == progress.update_debt == 7
    assert progress.intervention_steps == 2
    rows = fetch_episodes(offline)
    assert rows["reward"].tolist() == [4, 5, 6, 7, 8]
    assert rows["start"].tolist() == rows["intervened"].tolist()
    assert "start" not in fetch_episodes(online)


def test_what_a_person_did_is_never_too_stale():
    _, feed = counted(
        [summary(True, 3), summary(True, 4, count=1, acted=2)], updates=9, max_staleness=1
    )
    (offline,) = feed
    assert (offline.buffer, offline.kept) == ("offline", [4])


def test_assisted_success_is_not_the_policy_s():
    params = ResidualSACParams(residual_scale_schedule="success", residual_scale_init=0.1)
    progress, _ = counted([summary(True, 5, count=1, acted=1)] * 30, params)
    assert progress.schedule.value(0) == 0.1
    assert "train/success_rate" not in progress.recent_metrics()
    progress, _ = counted(
        [summary(True, 4, 2, 3), summary(False, 6, 1, 1), summary(False, 10)], params
    )
    metrics = progress.recent_metrics()
    assert metrics["train/success_rate"] == 0
    assert metrics["train/assisted_success_rate"] == 0.5
    assert metrics["train/intervention_share"] == pytest.approx(4 / 20)
    assert metrics["train/intervention_count_mean"] == 1
    assert metrics["train/intervention_steps_mean"] == pytest.approx(4 / 3)


def test_without_a_person_nothing_is_said_of_one():
    progress, feed = counted([summary(True, 4), summary(False, 5)])
    assert [share.buffer for share in feed] == ["online"]
    assert not [name for name in progress.recent_metrics() if "interv" in name or "assist" in name]


def test_the_counts_of_a_person_are_kept(tmp_path):
    progress, _ = counted([summary(True, 4, 2, 3)])
    progress.save(tmp_path)
    write_manifest(tmp_path)
    other, _ = counted([])
    other.restore(read_progress(tmp_path))
    assert other.intervention_steps == 3
    assert other.recent_metrics() == progress.recent_metrics()


def helped_config(**training):
    """A point that hardly anybody brings to its goal but the person, who takes over soon."""
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 30}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
        .human(device="scripted", patience_steps=5, hold_steps=8)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 0,
                "warmup_steps": 60,
                "warmup_actions": "random",
                "residual_dims": [],
                "probe_steps": 6,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "sample_steps": 60,
                "actor_delay_updates": 0,
                **training,
            }
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 60
    return config


def trained(algorithm, steps=300):
    while algorithm.env_steps < steps:
        algorithm.train()
    if algorithm.asynchronous is not None:
        algorithm.asynchronous.drain()
    return algorithm


def check_rings(algorithm):
    """Offline lie the person's steps as starts; online lies every step once."""
    progress, replay = algorithm.progress, local_learner(algorithm).replay
    offline, online = replay.offline, replay.online
    assert progress.intervention_steps > 20
    assert len(offline) == progress.intervention_steps
    assert offline.column("intervened", offline.start_rows()).all()
    assert len(offline.transition_rows()) > len(offline)
    assert len(online) == progress.stored_steps + progress.collection_stored_steps
    intervened = online.column("intervened", online.start_rows()) > 0
    assert intervened.sum() == progress.intervention_steps
    rows = online.start_rows()[intervened]
    assert (online.column("residual_scale", rows) == 0).all()
    # the person walks to the goal, as far as a step goes: what was executed is what is stored
    to_go = online.column("observation.environment_state", rows)[:, :3]
    torch.testing.assert_close(online.column("action", rows)[:, :3], (to_go / 0.05).clamp(-1, 1))


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("compose_base", [True, False])
def test_a_person_helps_and_a_resumed_run_has_all_of_it(build, tmp_path, compose_base):
    config = helped_config(compose_base=compose_base)
    algorithm = trained(build(config))
    check_rings(algorithm)
    metrics = algorithm.progress.recent_metrics()
    assert 0 < metrics["train/intervention_share"] < 1
    assert metrics["train/assisted_success_rate"] > 0
    assert algorithm.updates == algorithm.progress.stored_steps - int(
        algorithm.progress.update_debt
    )
    algorithm.save_checkpoint(str(tmp_path))
    other = build(config.copy(copy_frozen=False))
    other.load_checkpoint(str(tmp_path))
    assert other.progress.intervention_steps == algorithm.progress.intervention_steps
    for name in ("offline", "online"):
        one, two = (getattr(local_learner(a).replay, name) for a in (algorithm, other))
        assert torch.equal(one.start_rows(), two.start_rows())
        assert torch.equal(one.observations(), two.observations())
    trained(other, other.env_steps + 120)
    check_rings(other)


@pytest.mark.usefixtures("ray_cluster")
def test_a_person_helps_remote_runners_while_a_learner_learns(build):
    config = helped_config(sampling="asynchronous", publish_interval=20)
    config.env_runners(num_env_runners=2)
    check_rings(trained(build(config)))


@pytest.mark.usefixtures("ray_cluster")
def test_the_same_seed_and_person_repeat_a_pipelined_run(build):
    rows, weights = [], []
    for _ in range(2):
        config = helped_config()
        config.env_runners(num_env_runners=2).human(takeover="random", probability=0.1)
        algorithm = trained(build(config))
        assert algorithm.updates > 100
        assert algorithm.progress.intervention_steps > 20
        learner = local_learner(algorithm)
        online = learner.replay.online
        rows.append(online.column("action", online.start_rows()))
        weights.append(learner.networks.state_dict())
    assert torch.equal(*rows)
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


# --- HG-DAgger -----------------------------------------------------------------------------------

IMITATION = {
    "actor_loss": "hg_dagger",
    "log_std_init": -5.0,
    "use_probing": False,
    "actor_lr": 5e-3,
}


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("compose_base", [True, False])
def test_hg_dagger_acts_as_the_person_does_and_trains_no_critic(build, compose_base):
    scale = 2.0 if compose_base else 1.0
    config = helped_config(compose_base=compose_base, residual_scale=scale, **IMITATION)
    algorithm = trained(build(config), 700)
    check_rings(algorithm)
    learner = local_learner(algorithm)
    networks, offline = learner.networks, learner.replay.offline
    assert algorithm.updates > 400
    untrained = [networks.critic.state_dict(), networks.target_critic.state_dict()]
    assert all(torch.equal(*(state[name] for state in untrained)) for name in untrained[0])
    rows = offline.start_rows()
    columns = [*networks.observation_keys, "base_action"]
    played, _ = networks.act({name: offline.column(name, rows) for name in columns})
    wanted = offline.column("action", rows)
    error = (played - wanted).square().mean().item()
    assert error < 0.3 * wanted.square().mean().item()


@pytest.mark.usefixtures("ray_cluster")
def test_demonstrations_are_a_person_s_for_hg_dagger(build, tmp_path):
    config = helped_config(demo_path=[str(record(tmp_path / "demonstrations"))], **IMITATION)
    config.human(device="none")
    algorithm = trained(build(config), 120)
    offline, online = (getattr(local_learner(algorithm).replay, n) for n in ("offline", "online"))
    assert offline.column("intervened", offline.start_rows()).all()
    assert not online.column("intervened", online.start_rows()).any()


@pytest.mark.usefixtures("ray_cluster")
def test_windows_of_demonstrations_start_where_a_dataset_says(build, tmp_path):
    paths = [record(tmp_path / "plain"), record(tmp_path / "marked", every=5)]
    config = helped_config(demo_path=[str(path) for path in paths], demo_episodes="all")
    config.human(device="none")
    offline = local_learner(trained(build(config), 60)).replay.offline
    lengths = offline.episode_lengths
    firsts = np.cumsum(np.add(lengths, 1)) - np.add(lengths, 1)
    assert len(lengths) == 24
    expected = [
        first + np.arange(0, length, 5 if number >= 12 else 1)
        for number, (first, length) in enumerate(zip(firsts, lengths, strict=True))
    ]
    assert offline.start_rows().tolist() == np.concatenate(expected).tolist()


@pytest.mark.usefixtures("ray_cluster")
def test_demonstrations_that_the_offline_ring_would_drop_are_refused(build, tmp_path):
    config = helped_config(demo_path=[str(record(tmp_path / "demonstrations"))])
    config.training(offline_capacity=40)
    algorithm = build(config)
    with pytest.raises(DataError, match=r"episodes of demo_path need \d+ rows .*raise it to \d+"):
        algorithm.train()


def test_a_demonstration_says_which_rows_are_a_person_s_or_all_are():
    told = {"intervened": np.array([False, True, False]), "reward": np.zeros(3)}
    assert of_a_person(told) is told
    untold = {**told, "intervened": np.zeros(3, bool)}
    assert of_a_person(untold)["intervened"].all()
    assert not untold["intervened"].any()
