"""The exported policy's own bookkeeping, with a base policy whose actions say where they are."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.plugin.acting import ActingPolicy
from pld_ray.policies import Prediction
from pld_ray.rollout.vector_env import with_base_policy

OBSERVATIONS = gym.spaces.Dict({"observation.state": gym.spaces.Box(-1, 1, (2,), np.float32)})
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)


class Counting:
    """Chunks of three: 0, 0.1, 0.2 more than the state's first number; the instruction's length."""

    action_dim, n_action_steps, fingerprint = 2, 3, "counting"
    input_features = {"observation.state": (2,)}

    def infer(self, observations, tasks, env_ids, seeds=None):
        first = observations["observation.state"][:, :1] + np.float32([0, 0.1, 0.2])
        words = np.float32([[len(task) / 10] * 3 for task in tasks])
        return Prediction(np.stack([first, words], axis=-1).astype(np.float32))


@pytest.fixture
def policy():
    params = ResidualSACParams(residual_dims=[], hidden_dims=[4], ema_decay=0.0)
    networks = ResidualNetworks.of_spaces(  # the actor starts at zero: base + residual is the base
        with_base_policy(Counting(), OBSERVATIONS, ACTIONS), ACTIONS, params
    )
    networks.keep_what_acts()
    torch.nn.init.zeros_(networks.actor.head.weight)
    return ActingPolicy(Counting(), networks, OBSERVATIONS, ACTIONS, task="lift")


def act(policy, *values, **given):
    state = np.float32([[value, 0] for value in values])
    return (
        policy.predict({"observation.state": state}, **given)[:, 0].astype(float).round(4).tolist()
    )


def test_each_environment_plays_its_own_chunk_and_begins_anew_where_an_episode_starts(policy):
    assert act(policy, 0.0, 0.5) == [0.0, 0.5]
    assert act(policy, -1.0, -1.0) == [0.1, 0.6]  # of the chunks of the first observation
    assert act(policy, -1.0, 0.3, episode_start=[False, True]) == [0.2, 0.3]
    assert act(policy, -0.5, -1.0) == [-0.5, 0.4]  # the first one's chunk was used up
    policy.reset()
    assert act(policy, 0.1, 0.2, 0.3) == [0.1, 0.2, 0.3]


def test_the_instruction_is_the_trained_one_unless_another_is_given(policy):
    state = {"observation.state": np.zeros((1, 2), np.float32)}
    assert policy.predict(state)[0, 1] == np.float32(0.4)  # "lift"
    assert policy.predict(state, [True], ["put it down"[:6]])[0, 1] == np.float32(0.6)


@pytest.mark.parametrize(
    ("observations", "starts", "words"),
    [
        ({}, None, "observation.state is missing"),
        ({"observation.state": np.zeros((2, 3))}, None, r"has shape \(2, 3\); .*\(-1, 2\)"),
        ({"observation.state": np.zeros((2, 2))}, [True], "the same number of rows"),
        ({"observation.state": np.zeros((3, 2))}, None, r"got 3 rows, but there are 2 env.*reset"),
    ],
)
def test_what_does_not_fit_is_refused(policy, observations, starts, words):
    act(policy, 0.0, 0.0)
    with pytest.raises(ValueError, match=words):
        policy.predict(observations, starts)
