"""Q-chunking on RLlib: datasets, offline, online, evaluation, checkpoints, what is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from local import local_learner
from point_demonstrations import EPISODE_LENGTH, SIDE, record
from ray import tune

from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError
from pld_ray.rllib.chunked import ACRLPD, ACRLPDConfig
from pld_ray.rollout.messages import ReplayBatch, SampleRequest

pytestmark = pytest.mark.usefixtures("ray_cluster")
ENV = {
    "entry_point": "envs.point:PointEnv",
    "kwargs": {"episode_length": EPISODE_LENGTH, "side": SIDE},
}


def small_config(demonstrations, **training):
    return (
        ACRLPDConfig()
        .environment(env_config=ENV)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(
            **{
                "demo_path": [str(demonstrations)],
                "horizon": 3,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "num_critics": 2,
                "num_candidates": 4,
                "flow_steps": 2,
                "offline_updates": 20,
                "utd": 0.1,
                **training,
            }
        )
        .evaluation(held_init_states=[0, 1, 2])
        .debugging(seed=3, log_level="ERROR")
    )


def networks(algorithm):
    state = local_learner(algorithm).networks.state_dict()
    return {name: value.clone() for name, value in state.items()}


def test_from_datasets_to_online(build, demonstrations):
    algorithm = build(small_config(demonstrations, n_action_steps=2))
    before = networks(algorithm)
    result = algorithm.train()  # reads the datasets
    assert algorithm.phase == "offline"
    offline = local_learner(algorithm).replay.offline
    dataset = Dataset(demonstrations)
    assert offline.episode_lengths == dataset.lengths.tolist()
    rows = offline.start_rows()
    positive = dataset.lengths[dataset.successes()].sum()
    assert offline.num_windows(horizon=3) == (dataset.lengths.sum(), positive)
    np.testing.assert_array_equal(
        offline.column("action", rows).numpy(), dataset.columns(["action"])["action"]
    )
    assert not algorithm.has_base
    fitted, used = local_learner(algorithm).networks, dataset.columns(["action"])["action"]
    np.testing.assert_array_equal(fitted.action_low.numpy(), used.min(0))
    np.testing.assert_array_equal(fitted.action_high.numpy(), used.max(0))

    result = algorithm.train()
    assert algorithm.phase == "online"
    assert algorithm.updates == algorithm.progress.offline_done == 20
    assert algorithm.env_steps == 0
    learnt = result["learners"]["default_policy"]
    assert {"critic_loss", "flow_loss", "q_mean", "positive_share"} <= learnt.keys()
    assert any(not torch.equal(v, before[k]) for k, v in networks(algorithm).items())

    algorithm.train()
    algorithm.train()
    assert algorithm.env_steps >= 1000
    progress = algorithm.progress
    owed = progress.update_debt + algorithm.updates - 20
    assert owed == pytest.approx(0.1 * progress.stored_steps)
    online = local_learner(algorithm).replay.online
    rows = online.start_rows()
    action, planned = online.column("action", rows), online.column("base_action", rows)
    assert torch.equal(action, planned)
    assert (action.abs() <= 1).all()
    assert (action[:, 3:] == 0).all()  # as in the demonstrations
    assert len(online) == progress.stored_steps
    # two of three actions of a chunk are played: as many plans as that takes, and no more
    chunks = algorithm.env_runner.env.unwrapped.chunks
    assert algorithm.env_steps / 2 <= chunks.num_rows <= algorithm.env_steps / 2 * 1.2
    assert chunks.policy.num_candidates == 4


def test_a_person_who_leaves_the_range_of_the_data_is_told_of_once(build, demonstrations, caplog):
    algorithm = build(small_config(demonstrations, offline_updates=1))
    algorithm.initialize()
    learner = local_learner(algorithm)
    high = float(learner.networks.action_high[1])
    batch = algorithm.env_runner.sample_episodes(SampleRequest(60))
    columns = {name: np.array(column) for name, column in batch.columns.items()}
    part = ReplayBatch(columns, batch.episode_lengths, "offline", starts="intervened")
    columns["intervened"][1] = True
    with caplog.at_level(logging.WARNING, "pld_ray"):
        learner.write([part])
        assert not caplog.messages  # inside it
        columns["action"][2, 4] = 0.5  # not the person's
        columns["action"][1, 5], columns["action"][1, 1] = -0.75, high + 0.25
        learner.write([part])
        learner.write([part])
    (message,) = caplog.messages
    assert message.startswith("a person moved action dimension 1 by 0.25, 5 by 0.75 beyond")
    update = learner.gradient_steps
    taken = learner.networks.to_unit(torch.from_numpy(columns["action"][1]))
    assert (taken[1], taken[5]) == (1.0, 0.0)
    assert np.isfinite(update.run(1)["critic_loss"])


def test_a_driver_without_an_environment_passes_weights_on(demonstrations):
    """Beside remote runners the driver's has a module, and plays nothing."""
    config = small_config(demonstrations).env_runners(num_env_runners=1)
    remote = config.env_runner_cls(config=config, worker_index=1)
    local = config.env_runner_cls(config=config, worker_index=0, spaces=remote.get_spaces())
    assert local.env is None
    local.restart_streams(3)
    remote.set_state(local.get_state())
    remote.restart_streams(3)
    batch = remote.sample_episodes(SampleRequest(60))
    assert batch.num_env_steps >= 60
    assert batch.columns["success"].dtype == bool
    remote.stop()


def test_evaluation_is_deterministic_and_the_flow_alone_is_another_contestant(
    build, demonstrations
):
    algorithm = build(small_config(demonstrations, offline_updates=5))
    algorithm.initialize()
    found = algorithm.evaluate_start([0, 1, 2])
    assert set(found) == {"base", "offline"}
    assert [e.init_state_id for e in found["offline"]] == [0, 1, 2]
    assert algorithm.evaluate_residual([0, 1, 2]) == found["offline"]
    assert algorithm.evaluate_base([0, 1, 2]) == found["base"]
    result = algorithm.evaluate()
    assert 0 <= result["env_runners"]["success_rate"] <= 1


def test_a_checkpoint_goes_on_the_same_way_twice(build, demonstrations, tmp_path):
    config = small_config(demonstrations, improvement="distill")
    algorithm = build(config)
    algorithm.initialize()
    algorithm.train()
    algorithm.save_checkpoint(str(tmp_path))
    heirs = [build(config.copy(copy_frozen=False)) for _ in range(2)]
    for heir in heirs:
        heir.load_checkpoint(str(tmp_path))
        assert (heir.phase, heir.updates) == ("online", algorithm.updates)
    for name, value in networks(algorithm).items():
        assert torch.equal(value, networks(heirs[0])[name]), name
    for heir in heirs:
        heir.train()
    assert heirs[0].updates > algorithm.updates
    for name, value in networks(heirs[0]).items():
        assert torch.equal(value, networks(heirs[1])[name]), name


def test_tune_varies_the_horizon(demonstrations, tmp_path):
    config = small_config(demonstrations, offline_updates=2, horizon=tune.grid_search([1, 4]))
    tuner = tune.Tuner(
        ACRLPD,
        param_space=config,
        run_config=tune.RunConfig(
            stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0
        ),
    )
    results = tuner.fit()
    assert not results.errors
    assert sorted(r.config["horizon"] for r in results) == [1, 4]
    assert all("flow_loss" in r.metrics["learners"]["default_policy"] for r in results)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"horizon": 50}, r"episode \d+ has \d+ steps and algorithm.horizon=50: lower the horizon"),
        ({"n_action_steps": 4}, "n_action_steps=4: must be at most horizon=3"),
        ({"temperature": 0.1}, "temperature=0.1: must be 0: a flow has no tractable"),
        ({"improvement": "sac"}, "improvement='sac': must be best_of_n or distill or bptt with"),
    ],
)
def test_what_cannot_be_learnt_is_refused(build, demonstrations, training, message):
    with pytest.raises(ValueError, match=message):
        build(small_config(demonstrations, **training)).initialize()


def test_without_a_success_there_is_nothing_to_clone(build, tmp_path):
    failures = record(tmp_path / "failures", episodes=2, good=0.0)
    with pytest.raises(DataError, match="none of the 2 episodes of demo_path ended in success"):
        build(small_config(failures)).initialize()
    build(small_config(failures, bc_episodes="all", offline_updates=1)).initialize()
