"""The RLlib algorithm on the real environment and base policy, in real Ray processes."""

from __future__ import annotations

import numpy as np
import pytest
import ray
import torch
from local import local_learner
from ray.rllib.core import DEFAULT_MODULE_ID
from update_fixtures import PLAIN

from pld_ray.evaluation.requests import Contestant
from pld_ray.files.manifest import CheckpointError
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.messages import SampleRequest

pytestmark = pytest.mark.usefixtures("ray_cluster")


def small_config(**training):
    config = (
        ResidualSACConfig()
        .environment(env_config={"task": "lift_the_can", "episode_length": 20})
        .env_runners(num_env_runners=0)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 0,
                "warmup_steps": 40,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "probe_steps": 5,
                "sample_steps": 20,
                "actor_delay_updates": 0,
                **training,
            }
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 20
    config.evaluation(held_init_states=[0, 1])
    return config


def point_config(**training):
    """Without simulator and base policy, for what only concerns processes and counts."""
    config = small_config(
        **{"warmup_actions": "random", "warmup_steps": 80, "sample_steps": 40, **training}
    )
    config.env_config = {"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 40}}
    config.min_sample_timesteps_per_iteration = 40
    return config.base_policy(type="none")


def weights(algorithm):
    return {
        k: v.detach().clone() for k, v in local_learner(algorithm).networks.state_dict().items()
    }


def runner_weights(algorithm):
    return algorithm.env_runner.module.networks.state_dict()


def train_until_updates(algorithm, updates=1, limit=30):
    for _ in range(limit):
        if algorithm.updates >= updates:
            return
        algorithm.train()
    raise AssertionError(f"no update after {limit} iterations")


def test_phases_debt_and_metrics(build):
    algorithm = build(small_config(utd=2))
    assert algorithm.phase == "collect"
    while algorithm.phase == "collect":
        algorithm.train()
    # the warm-up is the base policy alone, and is stored
    ring = local_learner(algorithm).replay.online
    rows = ring.start_rows()
    assert len(rows) >= 40
    assert torch.equal(ring.column("action", rows), ring.column("base_action", rows))
    assert (ring.column("residual_scale", rows) == 0).all()
    train_until_updates(algorithm)
    assert algorithm.phase == "online"
    result = algorithm.train()
    replay = local_learner(algorithm).replay
    # warm-up costs no update; every later stored step is owed exactly utd of them
    warmup = sum(replay.online.episode_lengths[:2])
    assert warmup >= 40
    owed = 2 * (len(replay.online) - warmup)
    assert algorithm.updates + algorithm.progress.update_debt == owed
    stats = result["learners"][DEFAULT_MODULE_ID]
    for name in ("critic_loss", "q_mean", "q_out_of_bound", "alpha"):
        assert np.isfinite(stats[name])


def test_the_warm_up_is_a_plain_rollout_and_successes_are_in_both_rings(build):
    config = point_config(warmup_actions="base", offline_episodes=3, warmup_steps=40)
    config.env_config = {"entry_point": "uneven_env:UnevenEnv"}
    config.env_runners(num_envs_per_env_runner=8)
    algorithm = build(config)
    algorithm.initialize()
    replay = local_learner(algorithm).replay
    # the first episodes of environments 0, 1, 2, 3; by their ends, successes alone would come first
    assert replay.online.episode_lengths == [4, 20, 4, 20]
    assert replay.offline.episode_lengths == [4, 4, 4]
    online = replay.online.observations()
    assert torch.equal(replay.offline.observations()[:4], online[:4])
    # over when the failures are: 20 steps of 8 environments, less the resets between
    assert algorithm.progress.collection_stored_steps == 48
    assert algorithm.env_steps <= 160 + 40


def test_probing_steps_are_never_stored(build):
    algorithm = build(point_config(probe_steps=30))
    runner = algorithm.env_runner
    while algorithm.phase == "collect":
        algorithm.train()
    batch = runner.sample_episodes(SampleRequest(400))
    probes = [e.probe_steps for e in batch.episodes]
    assert max(probes) > 0
    stored = [e.length - e.probe_steps for e in batch.episodes]
    assert batch.episode_lengths == [n for n in stored if n > 0]
    assert (batch.columns["residual_scale"][:-1] > 0).any()


@pytest.fixture(scope="module")
def trained(ray_cluster, tmp_path_factory):
    """Past its first 40 updates, and its checkpoint."""
    algorithm = small_config().build_algo()
    train_until_updates(algorithm, 40)
    folder = str(tmp_path_factory.mktemp("trained") / "checkpoint")
    algorithm.save_checkpoint(folder)
    yield algorithm, folder
    algorithm.stop()


def test_checkpoint_restores_everything_and_the_next_update_is_the_same(build, trained):
    first, folder = trained
    first.load_checkpoint(folder)
    second = build(small_config())
    second.load_checkpoint(folder)
    for name in ("phase", "env_steps", "updates", "update_debt"):
        assert getattr(second.progress, name) == getattr(first.progress, name)
    assert len(local_learner(second).replay) == len(local_learner(first).replay)
    runner = runner_weights(second)
    for key, value in weights(second).items():
        assert torch.equal(value, weights(first)[key]), key
        if key in runner:
            assert torch.equal(value, runner[key]), f"the runner's {key} is stale"
    results = [local_learner(a).gradient_steps.run(5) for a in (first, second)]
    assert results[0] == results[1]
    for key, value in weights(first).items():
        assert torch.equal(value, weights(second)[key]), key


def test_what_is_no_folder_is_no_checkpoint(trained):
    for given in (None, "nowhere"):
        with pytest.raises(CheckpointError, match=f"{given} is not a pld-ray checkpoint"):
            trained[0].load_checkpoint(given)


def test_an_older_checkpoint_restored_in_place_wins_over_newer_weights(trained):
    algorithm, folder = trained
    algorithm.load_checkpoint(folder)
    old = weights(algorithm)
    algorithm.train()
    algorithm.train()
    assert not torch.equal(weights(algorithm)["log_alpha"], old["log_alpha"])
    algorithm.load_checkpoint(folder)
    runner = runner_weights(algorithm)
    for key, value in old.items():
        assert torch.equal(weights(algorithm)[key], value)
        if key in runner:
            assert torch.equal(runner[key], value)


def test_rllibs_from_checkpoint_brings_the_replay_back(trained, tmp_path):
    from pld_ray.rllib import ResidualSAC

    first, folder = trained
    first.load_checkpoint(folder)
    assert first.save_to_path(str(tmp_path / "rllib"))  # RLlib's part alone
    second = ResidualSAC.from_checkpoint(folder)
    try:
        assert second.env_steps == first.env_steps
        assert len(local_learner(second).replay) == len(local_learner(first).replay)
    finally:
        second.stop()


def test_a_checkpoint_leaves_rays_own_serialisation_alone(trained):
    @ray.remote
    def total(columns):
        return float(columns["x"].sum())

    assert ray.get(total.remote({"x": np.ones(3, dtype=np.float32)})) == 3


def test_same_seed_same_numbers(build, trained):
    first, folder = trained
    first.load_checkpoint(folder)  # as it was after its first updates
    second = build(small_config())
    train_until_updates(second, 40)
    assert first.updates == second.updates
    assert first.env_steps == second.env_steps
    for key, value in weights(first).items():
        assert torch.equal(value, weights(second)[key]), key


@pytest.fixture(scope="module")
def spread(ray_cluster):
    """Two remote runners, a learner in an actor of its own and a pool for the base policy, past
    their first updates. Without a simulator: this concerns processes."""
    config = point_config(warmup_actions="base").base_policy(type="lerobot", placement="pool")
    config.env_config["kwargs"]["side"] = 0.1  # some episodes come to the goal
    algorithm = (
        config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5)
        .learners(num_learners=1)
        .evaluation(evaluation_interval=1000)  # makes the group, in this process
        .build_algo()
    )
    train_until_updates(algorithm)
    yield algorithm
    algorithm.stop()


def test_two_remote_runners_feed_one_learner_and_evaluate_each_state_once(spread):
    algorithm = spread
    rows = algorithm.evaluate_residual([0, 1, 2, 3, 4])
    assert [row.init_state_id for row in rows] == [0, 1, 2, 3, 4]
    assert len({row.length for row in rows}) > 1  # they are told apart by more than their ids
    again = algorithm.evaluate_residual([4, 2])
    assert again == [rows[4], rows[2]]
    for alone, group in (
        (False, algorithm.eval_env_runner_group),
        (True, algorithm.env_runner_group),  # nothing else goes on, and these are more
    ):
        evaluation = algorithm.start_evaluation([4, 2], {"residual": Contestant()}, alone)
        assert evaluation.group is group
        assert evaluation.wait() == {"residual": again}
    assert algorithm.env_runner_group.num_healthy_remote_env_runners() == 2
    runners = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: float(
            sum(v.sum() for v in runner.module.networks.actor.state_dict().values())
        ),
        local_env_runner=False,
    )
    assert len(runners) == 2
    assert runners[0] == runners[1]


@pytest.mark.chaos
def test_a_killed_runner_costs_its_open_episodes_and_nothing_else(build):
    import os
    import signal

    config = point_config().env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5)
    algorithm = build(config)
    train_until_updates(algorithm)
    pids = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: os.getpid(), local_env_runner=False
    )
    before = algorithm.env_steps
    os.kill(pids[0], signal.SIGKILL)
    for _ in range(200):
        result = algorithm.train()
        stats = result["fault_tolerance"]
        if stats["num_remote_worker_restarts"] >= 1 and stats["num_healthy_workers"] == 2:
            break
    assert stats["num_healthy_workers"] == 2
    assert algorithm.env_steps > before
    scales = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: runner.module.networks.actor.state_dict(), local_env_runner=False
    )
    for key, value in scales[0].items():
        assert torch.equal(value, scales[1][key]), "the restarted runner has other weights"


def test_rllibs_own_sample_and_evaluate_work(build):
    algorithm = build(small_config())
    episodes = algorithm.env_runner.sample(num_episodes=1, explore=False)
    episode = episodes[0]
    assert len(episode) <= 20
    base = episode.get_observations()["base_action"][:-1]
    np.testing.assert_array_equal(episode.get_actions(), base)  # untrained: mean 0
    result = algorithm.evaluate()["env_runners"]
    assert result["num_episodes"] == 2
    assert 0 <= result["success_rate"] <= 1


def test_the_collected_data_is_cached_and_a_foreign_cache_refused(build, tmp_path):
    folder = str(tmp_path / "cache")
    first, second = (build(small_config(offline_cache=folder)) for _ in range(2))
    counts = ("phase", "env_steps", "updates", "update_debt", "recent_episodes")
    curves = []
    for algorithm in (first, second):
        curves.append([])
        while algorithm.updates < 10:
            algorithm.train()
            row = {name: getattr(algorithm.progress, name) for name in counts}
            curves[-1].append({**row, "iteration": algorithm.iteration})
    assert curves[0] == curves[1]
    assert [row["env_steps"] for row in curves[0][:3]] == [20, 40, 60]
    for key, value in weights(first).items():
        assert torch.equal(value, weights(second)[key]), "cached and fresh collection differ"
    third = build(small_config(offline_cache=folder, warmup_steps=41))
    with pytest.raises(Exception, match="collected with warmup_steps=40"):
        third.train()


def test_a_cache_that_cannot_be_written_in_the_end_does_not_cost_the_run(build, tmp_path, caplog):
    folder = tmp_path / "cache"
    algorithm = build(point_config(offline_cache=str(folder)))
    algorithm.train()
    assert algorithm.phase == "collect"
    folder.mkdir()
    (folder / "theirs").touch()
    with caplog.at_level("WARNING", "pld_ray"):
        train_until_updates(algorithm)
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    assert "no cache of base-policy data" in caplog.text
    assert "this run goes on with what it has collected" in caplog.text


def test_an_interrupted_collection_goes_on_with_what_it_has_and_counts_nothing_twice(
    build, tmp_path
):
    cache = str(tmp_path / "cache")
    config = point_config(warmup_actions="base", warmup_steps=160, offline_cache=cache)
    first = build(config)
    first.train()
    first.train()
    assert first.phase == "collect"
    first.save_checkpoint(str(tmp_path / "checkpoint"))

    second = build(config.copy())
    second.load_checkpoint(str(tmp_path / "checkpoint"))
    assert second.env_steps == 80
    taken = []
    while second.phase == "collect":
        second.train()
        taken.append(second.env_steps)
    assert taken == [120, 160]  # four episodes of 40 steps, two of them from before
    ring = local_learner(second).replay.online
    assert ring.episode_lengths == [40] * 4
    starts = ring.observations().reshape(4, 40, -1)[:, 0]
    assert len(torch.unique(starts, dim=0)) == 4  # no episode is repeated
    counts = second.progress
    assert counts.collection_stored_steps == counts.collection_env_steps == 160

    # the cache holds the collection whole, and a run from it has the same steps
    third = build(config.copy())
    third.initialize()
    assert third.env_steps == 160
    assert torch.equal(local_learner(third).replay.online.observations(), ring.observations())


def test_a_learner_in_an_actor_of_its_own_and_a_pool_for_the_base_policy(spread, tmp_path):
    algorithm = spread
    algorithm.save_checkpoint(str(tmp_path / "checkpoint"))
    updates = algorithm.updates
    algorithm.train()
    assert algorithm.updates > updates
    algorithm.load_checkpoint(str(tmp_path / "checkpoint"))
    assert algorithm.updates == updates
    algorithm.train()
    assert sum(algorithm.base_policy_pool.metrics()["batch_sizes"].values()) > 0
