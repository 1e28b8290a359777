"""Every environment of a run is given back when its algorithm stops, and not before."""

from __future__ import annotations

import gc
import time

import pytest

from pld_ray.rllib import ResidualSACConfig, runners

pytestmark = pytest.mark.usefixtures("ray_cluster")


def still_open(book):
    """Names of the environments that are open."""
    lines = [line.split() for line in book.read_text().splitlines()]
    names = [name for what, name in lines if what == "close"]
    assert len(names) == len({*names})
    return {name for what, name in lines if what == "open"} - {*names}


@pytest.mark.parametrize(
    ("remote", "training", "evaluation"),
    [
        (0, "in_process", "in_process"),
        (0, "subprocess", "subprocess"),
        (1, "in_process", "subprocess"),
        (1, "subprocess", "in_process"),
    ],
)
def test_environments_are_closed_with_the_algorithm(remote, training, evaluation, tmp_path):
    book = tmp_path / "book"
    env_config = {
        "entry_point": "closing_env:ClosingEnv",
        "kwargs": {"book": str(book)},
        "vectorization": training,
    }
    algorithm = (
        ResidualSACConfig()
        .environment(env_config=env_config)
        .base_policy(type="none")
        .env_runners(num_env_runners=remote, num_envs_per_env_runner=2)
        .training(warmup_steps=20, hidden_dims=[8], offline_episodes=0, sample_steps=20)
        .evaluation(
            held_init_states=[0, 1],
            evaluation_num_env_runners=remote,
            evaluation_config={"env_config": {"vectorization": evaluation}},
        )
        .debugging(seed=3, log_level="ERROR")
        .build_algo()
    )
    try:
        gc.collect()
        algorithm.training_step()
        assert len(algorithm.evaluate_base([0, 1])) == 2
        # an evaluation runner makes those that it is not asked to train in as well
        names = still_open(book)
        assert len(names) >= 4
        processes = [name.split("-")[0] for name in names]
        alone = [process for process in processes if processes.count(process) == 1]
        assert bool(alone) == ("subprocess" in (training, evaluation))
        assert (len(alone) < len(names)) == ("in_process" in (training, evaluation))
    finally:
        algorithm.stop()
    assert not still_open(book)


def test_a_runner_that_waits_for_a_person_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(runners, "STOP_S", 1.0)
    book = tmp_path / "book"
    algorithm = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "closing_env:WaitingEnv", "kwargs": {"book": str(book)}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=1)
        .training(hidden_dims=[8], offline_episodes=0)
        .debugging(log_level="ERROR")
        .build_algo()
    )
    algorithm.runners.request(base_only=True, random_actions=True)
    while not (tmp_path / "book.waits").exists():
        time.sleep(0.1)
    began = time.monotonic()
    algorithm.stop()
    assert time.monotonic() - began < 30
    assert "busy still" in caplog.text
