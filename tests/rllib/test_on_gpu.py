"""A learner on a GPU: from Cal-QL over its updates into a checkpoint, and on from there."""

import math

import pytest
import torch
from local import local_learner

from pld_ray.rllib.config import ResidualSACConfig

pytestmark = [
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]


def build(num_gpus=1):
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 20}}
        )
        .base_policy(type="none")
        .env_runners(num_env_runners=0)
        .learners(num_gpus_per_learner=num_gpus)
        .training(
            offline_episodes=0,
            warmup_steps=60,
            warmup_actions="random",
            batch_size=8,
            hidden_dims=[8, 8],
            sample_steps=40,
            actor_delay_updates=0,
            precision="auto",
        )
        .debugging(seed=3, log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 40
    return config.build_algo()


def test_a_run_on_a_gpu_goes_on_from_its_checkpoint(tmp_path):
    first = build()
    while first.updates < 40:
        first.train()
    learner = local_learner(first)
    assert learner.device.type == learner.replay.online.device.type == "cuda"
    first.save_checkpoint(str(tmp_path / "checkpoint"))
    weights = learner.networks.state_dict()
    updates = first.updates
    second = build()
    second.load_checkpoint(str(tmp_path / "checkpoint"))
    restored = local_learner(second)
    for name, tensor in restored.networks.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert len(restored.replay) == len(learner.replay)
    result = second.train()
    assert second.updates > updates
    assert math.isfinite(result["learners"]["default_policy"]["critic_loss"])
    elsewhere = build(num_gpus=0)  # a machine without one
    elsewhere.load_checkpoint(str(tmp_path / "checkpoint"))
    assert len(local_learner(elsewhere).replay) == len(learner.replay)
    elsewhere.train()
    for algorithm in (first, second, elsewhere):
        algorithm.stop()
