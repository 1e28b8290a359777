"""Whom a validation asks to play, once the residual has moved."""

from __future__ import annotations

import logging

import pytest
from update_fixtures import PLAIN

from pld_ray.config import TrainConfig
from pld_ray.jobs.loop_state import LoopState
from pld_ray.jobs.validation import BASE_SUCCESS, Validation
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.runs.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def moved(build):
    """An algorithm whose actor has made a step."""
    config = (
        ResidualSACConfig()
        .environment(env_config={"task": "lift_the_can", "episode_length": 20})
        .env_runners(num_env_runners=0)
        .training(
            **{
                **PLAIN,
                "offline_episodes": 0,
                "warmup_steps": 20,
                "batch_size": 16,
                "hidden_dims": [16, 16],
                "sample_steps": 20,
                "actor_delay_updates": 0,
            }
        )
        .debugging(seed=3, log_level="ERROR")
    )
    algorithm = build(config)
    while algorithm.acts_as_base:
        algorithm.train()
    return algorithm


def test_a_robot_is_not_asked_for_the_base_policys_episodes(moved, tmp_path):
    """They would be of no use to the residual; in a simulation the base policy plays as well."""
    recorded = []
    for name, robot in (("arm", {"type": "tabletop"}), ("simulation", {})):
        config = TrainConfig()
        config.env.robot = robot
        config.total_steps = moved.env_steps
        config.evaluation.held_states, config.evaluation.validation_states = 1, 1
        run = RunDir(tmp_path / name)
        run.create(config)
        validation = Validation(
            config,
            run,
            moved,
            save=lambda checkpoint, run=run: run.save_checkpoint(
                moved.save_checkpoint, checkpoint, {}
            ),
            record=lambda figures, steps: recorded.append(figures),
            logger=logging.getLogger(__name__),
        )
        state = LoopState.begin(config)
        assert validation.step(state, on_wait=lambda: None) == recorded[-1]
        assert (state.validation_base is None) == bool(robot)
    arm, simulation = recorded
    assert set(simulation) - set(arm) == {BASE_SUCCESS}
    assert arm["eval/n_episodes"] == 1
