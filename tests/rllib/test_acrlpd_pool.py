"""What Q-chunking learns plays in a pool: one request a chunk, and every version arrives."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from local import local_learner
from test_acrlpd import small_config

from pld_ray.config import ConfigError
from pld_ray.rllib.chunked.pooled import PlaysElsewhere

pytestmark = pytest.mark.usefixtures("ray_cluster")
HELD = [0, 1, 2]


def begun(build, config):
    algorithm = build(config)
    algorithm.initialize()
    return algorithm


def test_a_pool_plays_what_an_actor_inline_plays_bit_for_bit(build, demonstrations):
    inline = begun(build, small_config(demonstrations))
    config = small_config(demonstrations).base_policy(placement="pool", replicas=1)
    pooled = begun(build, config.env_runners(num_env_runners=0))
    assert isinstance(pooled.env_runner.module.networks, PlaysElsewhere)
    assert pooled.evaluate_start(HELD) == inline.evaluate_start(HELD)

    metrics = pooled.base_policy_pool.metrics()
    os.kill(metrics["replicas"][0]["pid"], signal.SIGKILL)  # its heir fetches what it was to play
    for algorithm in (inline, pooled):
        algorithm.train()
        algorithm.train()
    assert pooled.updates == inline.updates > 20
    states = [local_learner(a).networks.state_dict() for a in (inline, pooled)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
    assert pooled.evaluate_residual(HELD) == inline.evaluate_residual(HELD)
    chunks = pooled.env_runner.env.unwrapped.chunks
    metrics = pooled.base_policy_pool.metrics()
    assert metrics["restarts"] == 1
    assert chunks.num_rows <= metrics["rows"] <= 2 * chunks.num_rows + 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "asynchronous"}, "placement=pool with runners.sampling=asynchronous"),
        ({}, "placement=pool with evaluation.num_env_runners=1"),
    ],
)
def test_who_would_need_older_weights_is_refused(demonstrations, settings, message):
    config = small_config(demonstrations, **settings).base_policy(placement="pool")
    config.env_runners(num_env_runners=1).evaluation(evaluation_num_env_runners=1)
    with pytest.raises(ConfigError, match=message):
        config.validate()
