"""A pool under Tune: each trial reserves its replicas, and they live in what it has reserved."""

import pytest
import ray
from ray import tune

from pld_ray.rllib import ResidualSAC, ResidualSACConfig
from pld_ray.rllib.chunked.algorithm import ACRLPD
from pld_ray.rllib.chunked.config import ACRLPDConfig


def pooled_config(**policy):
    config = (
        ResidualSACConfig()
        .environment(
            env_config={"entry_point": "envs.point:PointEnv", "kwargs": {"episode_length": 10}}
        )
        .base_policy(**{"placement": "pool"} | policy)
        .env_runners(num_env_runners=0)
        .training(
            offline_episodes=0,
            warmup_steps=20,
            sample_steps=20,
            batch_size=16,
            hidden_dims=[16],
            actor_delay_updates=0,
            use_probing=False,
        )
        .debugging(log_level="ERROR")
    )
    config.min_sample_timesteps_per_iteration = 20
    return config


@pytest.mark.parametrize(
    ("policy", "replicas"),
    [
        ({}, [{"CPU": 1.0}]),
        ({"replicas": 2, "num_cpus_per_replica": 0.5}, [{"CPU": 0.5}] * 2),
        ({"max_replicas": 3, "resources": {"gpu_box": 1.0}}, [{"CPU": 1.0, "gpu_box": 1.0}] * 3),
        ({"num_cpus_per_replica": 0.0}, []),
        ({"type": "none"}, []),
        ({"placement": "inline", "replicas": 2}, []),
    ],
)
def test_a_trial_reserves_the_replicas_that_its_pool_may_have(policy, replicas):
    config = pooled_config(**policy).resources(placement_strategy="SPREAD")
    for given in (config, config.to_dict()):
        asked = ResidualSAC.default_resource_request(given)
        assert asked.bundles == [{"CPU": 1.0}, *replicas]
        assert asked.strategy == "SPREAD"


def test_a_trial_of_q_chunking_reserves_them_too():
    config = ACRLPDConfig().environment(env_config={"entry_point": "envs.point:PointEnv"})
    config.base_policy(placement="pool", replicas=2).env_runners(num_env_runners=1)
    asked = ACRLPD.default_resource_request(config.to_dict())
    assert asked.bundles == [{"CPU": 1.0}] * 4


@pytest.fixture
def two_cpus():
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    yield
    ray.shutdown()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("two_cpus")
def test_a_pool_lives_in_what_its_trial_has_reserved(tmp_path):
    """That is all there is: no CPU is left for a replica outside."""
    results = tune.Tuner(
        ResidualSAC,
        param_space=pooled_config(),
        run_config=tune.RunConfig(
            name="pooled", storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0
        ),
    ).fit()
    assert not results.errors
    assert [result.metrics["training_iteration"] for result in results] == [1]
