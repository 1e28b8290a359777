"""Evaluation beside training: every state once, whoever dies; at any beta; on film."""

from __future__ import annotations

import os
import signal

import pytest
from update_fixtures import PLAIN

from pld_ray.evaluation.requests import Contestant
from pld_ray.evaluation.video import film_init_state
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout import factory
from pld_ray.rollout.messages import EnvRunnerError

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def algorithm(ray_cluster):
    """Two evaluation runners beside one in this process that samples."""
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "drawn_env:DrawnEnv", "kwargs": {"episode_length": 20}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0)
        .evaluation(evaluation_num_env_runners=2)
        .training(
            **PLAIN,
            offline_episodes=0,
            warmup_steps=40,
            sample_steps=40,
            warmup_actions="random",
            use_probing=False,
            batch_size=16,
            hidden_dims=[16, 16],
            actor_delay_updates=0,
            critic_atoms=1,
        )
        .debugging(seed=3, log_level="ERROR")
    )
    built = config.build_algo()
    built.initialize()
    while built.updates < 40:
        built.training_step()
    yield built
    built.stop()


def test_each_state_is_played_once_in_order_while_training_goes_on(algorithm):
    states = [7, 3, 11, 0, 5, 2, 9, *range(20, 80)]
    contestants = {"residual": Contestant(), "at_zero": Contestant(residual_scale=0.0)}
    evaluation = algorithm.start_evaluation(states, contestants)
    steps, results = algorithm.env_steps, evaluation.poll()
    while results is None:
        algorithm.training_step()
        results = evaluation.poll()
    for episodes in results.values():
        assert [episode.init_state_id for episode in episodes] == states
    assert results["at_zero"] != results["residual"]
    assert algorithm.env_steps > steps
    # both were played with the weights of the beginning
    assert results == algorithm.start_evaluation(states, evaluation.contestants).wait()


def test_beta_zero_repeats_the_base_policys_episodes(algorithm):
    states = list(range(6))
    base = algorithm.evaluate_base(states)
    assert algorithm.evaluate_residual(states, 0.0) == base
    assert algorithm.evaluate_residual(states, 1.0) != base
    in_force = algorithm.eval_env_runner_group.foreach_env_runner(
        lambda runner: float(runner.module.networks.residual_scale), local_env_runner=False
    )
    assert set(in_force) == {algorithm.residual_scale}


def test_the_states_of_a_runner_that_dies_are_played_by_the_other(algorithm):
    group = algorithm.eval_env_runner_group
    pids = group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False)
    states = list(range(30))
    evaluation = algorithm.start_evaluation(states, {"residual": Contestant()})
    assert evaluation.poll() is None  # dealt, not over
    os.kill(pids[0], signal.SIGKILL)
    episodes = evaluation.wait()["residual"]
    assert [episode.init_state_id for episode in episodes] == states


def test_a_film_shows_both_episodes_side_by_side_until_the_longer_one_ends(algorithm, tmp_path):
    import av

    film, *_ = algorithm.eval_env_runner_group.foreach_env_runner(
        lambda runner: film_init_state(
            runner.config.env, factory.for_evaluation(runner.config.env_config), 4, runner._act
        ),
        local_env_runner=False,
    )
    assert film.base.init_state_id == film.residual.init_state_id == 4
    path = tmp_path / "film.mp4"
    path.write_bytes(film.mp4)
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 20 + 20  # the episodes' 20 steps, then the outcome for a second
    height, width = frames[0].shape[:2]
    assert (height, width) == (24 + 64, 2 * 64)
    band = frames[-1][2, 100:].mean(0)  # a failure is red
    assert band[0] > 2 * band[1]


def test_a_film_without_a_base_policy_shows_the_learnt_one_alone(algorithm, tmp_path):
    import av

    film = algorithm.film([4])[4]
    assert film.base is None
    path = tmp_path / "film.mp4"
    path.write_bytes(film.mp4)
    with av.open(str(path)) as container:
        (first, *_) = container.decode(video=0)
    assert (first.height, first.width) == (24 + 64, 64)


def test_an_environment_that_cannot_draw_is_named(algorithm):
    group = algorithm.eval_env_runner_group
    group.foreach_env_runner(
        lambda runner: os.environ.update(DRAWN_ENV_FAILS="1"), local_env_runner=False
    )
    with pytest.raises(EnvRunnerError, match="no paint"):
        algorithm.film([1])
