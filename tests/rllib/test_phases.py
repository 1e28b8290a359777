"""Cal-QL in the algorithm, pretrained critics, runs without a base, discrete grippers, learners."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from local import local_learner
from update_fixtures import PLAIN, same_weights

from pld_ray.config import TrainConfig
from pld_ray.jobs.loop_state import LoopState
from pld_ray.jobs.validation import BASE_SUCCESS, Validation
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.runs.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("collection") / "cache")


POINT = {"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 40}}
"""Where no simulator is needed."""


def small_config(**training):
    """The base policy succeeds in 35 to 50 steps, if it does; with this seed at once."""
    config = (
        ResidualSACConfig()
        .environment(env_config={"task": "lift_the_can", "episode_length": 60})
        .env_runners(num_env_runners=0)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 1,
                "warmup_steps": 40,
                "collection_seed": 5,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "probe_steps": 5,
                "sample_steps": 60,
                "actor_delay_updates": 0,
                "calql_steps": 30,
                "calql_num_actions": 3,
                **training,
            }
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 40
    return config


def weights(algorithm, prefix=""):
    state = local_learner(algorithm).networks.state_dict()
    return {k: v.clone() for k, v in state.items() if k.startswith(prefix)}


def test_the_critic_is_initialised_before_the_residual_takes_over(build, cache, tmp_path):
    algorithm = build(small_config(offline_cache=cache))
    actor = weights(algorithm, "actor")
    critic = weights(algorithm, "critic")
    algorithm.initialize()
    assert algorithm.phase == "online"
    assert algorithm.progress.calql_done == 30
    assert algorithm.updates == 0
    assert same_weights(actor, weights(algorithm, "actor"))
    assert not same_weights(critic, weights(algorithm, "critic"))
    row = algorithm.initialization_rows[-1]
    assert row["calql_gap"] == pytest.approx(row["calql_q_policy"] - row["calql_q_data"], abs=1e-6)
    assert 0 <= row["calql_bound_rate"] <= 1
    assert row["q_out_of_bound"] == 0

    # its critic is taken over by another run, which does not initialise again
    algorithm.save_checkpoint(str(tmp_path))
    heir = build(
        small_config(offline_cache=cache, pretrained_critic=str(tmp_path)).debugging(seed=9)
    )
    heir.initialize()
    assert heir.progress.calql_done == 0
    for prefix in ("critic", "target_critic", "normalizer"):
        assert same_weights(weights(algorithm, prefix), weights(heir, prefix)), prefix
    heir.train()
    assert heir.updates > 0 or heir.progress.update_debt > 0

    wrong = build(
        small_config(pretrained_critic=str(tmp_path), hidden_dims=[8], offline_cache=cache)
    )
    with pytest.raises(ValueError, match=r"critic.layers.0.weight has shape.*hidden_dims"):
        wrong.initialize()
    assert wrong.progress.env_steps == 0  # nothing was collected for it
    lost = build(small_config(pretrained_critic=str(tmp_path / "none"), offline_cache=cache))
    with pytest.raises(ValueError, match=r"learner\.json is missing"):
        lost.initialize()


def test_sac_from_scratch_has_no_base_action(build):
    config = small_config(
        calql_steps=0,
        offline_episodes=0,
        warmup_actions="random",
        compose_base=False,
        residual_dims=[],
    ).base_policy(type="none")
    config.env_config = POINT
    algorithm = build(config)
    algorithm.initialize()
    ring = local_learner(algorithm).replay.online
    rows = ring.start_rows()
    assert not ring.column("base_action", rows).any()
    actions = ring.column("action", rows)
    assert actions.abs().max() <= 1
    assert actions.std(0).min() > 0.4  # uniform: 0.58
    algorithm.train()
    algorithm.train()
    assert algorithm.updates > 0


def test_random_warm_up_follows_the_base_policy_s_demonstrations(build):
    """As RLPD with a discrete gripper: what a demonstration commanded is what it is labelled."""
    config = small_config(
        calql_steps=0,
        warmup_actions="random",
        compose_base=False,
        residual_dims=[1.0] * 6 + [0.0],
        gripper="discrete",
        reward_scale=10.0,
        reward_bias=-5.0,
        critic_atoms=1,
    )
    algorithm = build(config)
    algorithm.initialize()
    replay = local_learner(algorithm).replay
    offline, online = (
        {
            name: ring.column(name, ring.start_rows())
            for name in ("action", "base_action", "discrete_action", "reward", "mc_return")
        }
        for ring in (replay.offline, replay.online)
    )
    assert torch.equal(offline["action"], offline["base_action"])
    # 10 r - 5: the success at the end is worth 5, every step before it costs 5, at gamma 0.98
    assert offline["reward"].tolist() == [-5.0] * (len(offline["reward"]) - 1) + [5.0]
    assert offline["mc_return"][-2:].tolist() == pytest.approx([-5 + 0.98 * 5, 5])
    assert (online["reward"] == -5).all()
    command, label = offline["action"][:, 6], offline["discrete_action"]
    for choice, sent in ((0, command < -0.5), (1, command.abs() < 0.5), (2, command > 0.5)):
        assert (label[sent] == choice).all()
    assert {0, 2} <= set(label.tolist())  # it opened and it closed
    assert online["action"][:, :6].std(0).min() > 0.4  # uniform: 0.58
    assert (online["action"][:, :6].sign() != online["base_action"][:, :6].sign()).any(0).all()
    assert torch.equal(online["action"][:, 6], online["discrete_action"] - 1)


@pytest.mark.parametrize(("limit", "seed"), [(1, 10), (300, 5)])
def test_a_collection_ends_with_fewer_successes_but_with_one(build, limit, seed, caplog):
    """A base policy that seldom succeeds leaves steps to learn in."""
    wanted = {"offline_episodes": 50, "collection_steps": limit, "collection_seed": seed}
    algorithm = build(small_config(calql_steps=0, warmup_steps=2, **wanted))
    algorithm.initialize()
    offline, rounds = local_learner(algorithm).replay.offline, algorithm.collection.rounds
    successes = offline.column("reward", offline.start_rows()).sum()
    if limit == 1:  # nothing succeeds in the first round: it went on to the first success
        assert len(rounds) > 1
        assert successes == 1
        assert caplog.text.count("has not succeeded once in") == 1
    else:
        assert sum(rounds[:-1]) < limit <= sum(rounds)
        assert 1 <= successes < 50


def test_a_discrete_gripper_is_stored_learned_and_penalised(build):
    config = small_config(
        calql_steps=0,
        offline_episodes=0,
        gripper="discrete",
        gripper_epsilon=1.0,
        grasp_penalty=0.5,
        sample_steps=40,
    )
    config.env_config["episode_length"] = 40
    algorithm = build(config)
    before = weights(algorithm, "discrete_critic")
    for _ in range(4):
        algorithm.train()
    assert not same_weights(before, weights(algorithm, "discrete_critic"))
    ring = local_learner(algorithm).replay.online
    rows = ring.start_rows()
    action, base = ring.column("action", rows), ring.column("base_action", rows)
    choice, penalty = ring.column("discrete_action", rows), ring.column("discrete_penalty", rows)
    took_over = ring.column("residual_scale", rows) > 0
    assert set(choice[took_over].tolist()) == {0.0, 1.0, 2.0}
    assert (choice[~took_over] == 1).all()
    assert (action[choice == 0, 6] == -1).all()
    assert (action[choice == 2, 6] == 1).all()
    assert torch.equal(action[choice == 1, 6], base[choice == 1, 6])
    assert set(np.round(penalty.unique().tolist(), 3)) == {-0.5, 0.0}
    consecutive = torch.ones(len(rows) - 1, dtype=torch.bool)
    consecutive[torch.tensor(ring.episode_lengths).cumsum(0)[:-1] - 1] = False
    clear = (action[1:, 6].abs() > 0.5) & (action[:-1, 6].abs() > 0.5) & consecutive
    toggled = action[1:, 6].sign() != action[:-1, 6].sign()
    assert torch.equal(penalty[1:][clear] < 0, toggled[clear])
    result = algorithm.evaluate_residual([0])
    assert result[0].length > 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_two_learners_share_the_replay_and_stay_alike(build, cache, tmp_path):
    config = small_config(calql_steps=10, critic_dropout=0.1).learners(num_learners=2)
    config.env_config["episode_length"] = 40
    config.training(offline_episodes=0, calql_steps=0, sample_steps=80)
    algorithm = build(config)
    while algorithm.updates < 20:
        algorithm.train()

    def look(learner):
        state = learner.networks.state_dict()
        ring = learner.replay.online
        rows = ring.observations().sum(1).numpy()
        return {k: v.numpy() for k, v in state.items()}, len(ring), rows, learner.shard.rank

    def both(function, **kwargs):
        results = algorithm.learner_group.foreach_learner(function, **kwargs)
        return sorted((r.get() for r in results), key=lambda r: r[3])

    (one, n_one, rows_one, _), (two, n_two, rows_two, _) = both(look)
    assert n_one > 0
    assert n_two > 0
    assert not np.intersect1d(rows_one, rows_two).size  # each transition in one shard
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)

    algorithm.save_checkpoint(str(tmp_path))
    algorithm.learners.train(5, algorithm.residual_scale)
    after = both(look)
    algorithm.load_checkpoint(str(tmp_path))
    assert [r[1] for r in both(look)] == [n_one, n_two]
    algorithm.learners.train(5, algorithm.residual_scale)
    for restored, went_on in zip(both(look), after, strict=True):
        for name, value in restored[0].items():
            np.testing.assert_array_equal(value, went_on[0][name], err_msg=name)

    single = build(small_config(calql_steps=0, offline_episodes=0))
    with pytest.raises(ValueError, match="another number of learners"):
        single.load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("delay", [0, 60])
def test_it_acts_as_the_base_policy_until_the_first_step_of_the_actor(
    build, cache, delay, tmp_path
):
    """As long as its last layer is zero, delta = tanh(0); the counter must say the same."""
    options = {"calql_steps": 0, "offline_cache": cache, "actor_delay_updates": delay}
    algorithm = build(small_config(**options))
    seen = set()
    assert algorithm.has_frozen_base
    while True:
        head = weights(algorithm, "actor.head")
        untouched = all(not (value[: len(value) // 2] != 0).any() for value in head.values())
        assert algorithm.acts_as_base == untouched, algorithm.updates
        seen.add(untouched)
        if algorithm.updates >= delay + 50:
            break
        algorithm.train()
    assert seen == {True, False}
    if delay == 0:
        check_whom_a_validation_asks(algorithm, tmp_path)


@pytest.mark.parametrize("sampling", ["synchronous", "pipelined"])
def test_what_is_validated_and_saved_has_the_scale_of_this_step(build, cache, tmp_path, sampling):
    growing = {"residual_scale_schedule": "linear", "residual_scale_init": 0.1}
    options = {**growing, "residual_scale_steps": 400, "sampling": sampling}
    algorithm = build(small_config(calql_steps=0, offline_cache=cache, **options))
    algorithm.initialize()
    scales = [algorithm.residual_scale]
    for _ in range(2):
        algorithm.train()
        scales.append(algorithm.residual_scale)
        acting = algorithm.env_runner.module.networks.residual_scale
        assert weights(algorithm)["residual_scale"] == acting == pytest.approx(scales[-1])
    assert len(set(scales)) == 3
    algorithm.save_checkpoint(str(tmp_path))
    local_learner(algorithm).set_residual_scale(0.0)
    algorithm.load_checkpoint(str(tmp_path))
    assert weights(algorithm)["residual_scale"] == pytest.approx(scales[-1])


def check_whom_a_validation_asks(moved, tmp_path):
    """Once the residual has moved, a robot is not asked for the base policy's episodes."""
    recorded = []
    for name, robot in (("arm", {"type": "tabletop"}), ("simulation", {})):
        config = TrainConfig(total_steps=moved.env_steps)
        config.env.robot = robot
        config.evaluation.held_states, config.evaluation.validation_states = 1, 1
        run = RunDir(tmp_path / name)
        run.create(config)
        validation = Validation(
            config,
            run,
            moved,
            save=lambda name, run=run: run.save_checkpoint(moved.save_checkpoint, name, {}),
            record=lambda figures, steps: recorded.append(figures),
            logger=logging.getLogger(__name__),
        )
        state = LoopState.begin(config)
        assert validation.step(state, on_wait=lambda: None) == recorded[-1]
        assert (state.validation_base is None) == bool(robot)
    arm, simulation = recorded
    assert set(simulation) - set(arm) == {BASE_SUCCESS}
    assert arm["eval/n_episodes"] == 1


def test_an_actor_that_starts_elsewhere_does_not_act_as_the_base_policy(build, cache):
    for options in ({"init_final": 0.1}, {"gripper": "discrete"}, {"compose_base": False}):
        config = small_config(calql_steps=0, actor_delay_updates=60, **options)
        config.env_config = POINT
        algorithm = build(config)
        assert algorithm.has_frozen_base
        assert not algorithm.acts_as_base, options
