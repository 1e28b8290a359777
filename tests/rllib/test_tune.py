"""The algorithm under Tune, as any RLlib algorithm."""

import pathlib

import pytest
from ray import tune

from pld_ray.rllib import ResidualSAC, ResidualSACConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_grid_search_trains_checkpoints_and_reports(tmp_path):
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 10}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0)
        .training(
            offline_episodes=0,
            warmup_steps=20,
            sample_steps=20,
            warmup_actions="random",
            batch_size=16,
            hidden_dims=[16],
            actor_delay_updates=0,
            utd=tune.grid_search([1, 2]),
        )
        .debugging(log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 40
    results = tune.Tuner(
        ResidualSAC,
        param_space=config,
        run_config=tune.RunConfig(
            name="grid",
            storage_path=str(tmp_path),
            stop={"training_iteration": 3},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    assert not results.errors
    assert sorted(result.config["utd"] for result in results) == [1, 2]
    for result in results:
        assert result.metrics["learners"]["default_policy"]["critic_loss"] >= 0
        with result.checkpoint.as_directory() as folder:
            names = {path.name for path in pathlib.Path(folder).iterdir()}
        assert {"learner.json", "learner.safetensors", "replay", "residual_sac.json"} <= names
