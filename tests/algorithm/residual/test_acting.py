"""What acts in NumPy against the networks in PyTorch."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from pld_ray.algorithm.residual.acting import Actor, NumpyActor
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.config.residual_sac import ResidualSACParams

KEYS = ("observation.state", "observation.environment_state")


def make_networks(seed=0, **params):
    spaces = {
        KEYS[0]: gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        KEYS[1]: gym.spaces.Box(-np.inf, np.inf, (6,), np.float32),
        "base_action": gym.spaces.Box(-1, 1, (3,), np.float32),
    }
    plain = {"residual_dims": [], "hidden_dims": [16, 24], "residual_scale": 0.7, "ema_decay": 0.0}
    params = ResidualSACParams(**(plain | params))
    actions = gym.spaces.Box(np.float32([-1, -0.5, -1]), np.float32([1, 1, 0.5]))
    networks = ResidualNetworks.of_spaces(gym.spaces.Dict(spaces), actions, params, seed)
    networks.keep_what_acts()
    actor = networks.acting_actor
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return networks


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    rows = {
        key: rng.normal(size=(n, d)).astype(np.float32) for key, d in zip(KEYS, (4, 6), strict=True)
    }
    rows["base_action"] = rng.uniform(-1, 1, (n, 3)).astype(np.float32)
    return rows, rng.normal(size=(n, 3)).astype(np.float32)


def by_numpy(actor, rows, noise):
    return actor.act(np.concatenate([rows[k] for k in KEYS], -1), rows["base_action"], noise)


def by_torch(networks, rows, noise):
    tensors = {key: torch.from_numpy(value) for key, value in rows.items()}
    with torch.inference_mode():
        return networks.act(tensors, None if noise is None else torch.from_numpy(noise))[0].numpy()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"use_tanh_squash": False},
        {"compose_base": False},
        {"residual_dims": [1.0, 0.5, 0.0]},
        {"log_std_min": -1.0, "log_std_max": 0.0},
        {"ema_decay": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_it_acts_like_the_networks(params, deterministic):
    networks = make_networks(**params)
    networks.normalizer.fit(torch.randn(50, 10) * 3 + 1)
    rows, noise = make_rows(64)
    noise = None if deterministic else noise
    action = by_numpy(NumpyActor(networks), rows, noise)
    assert action.dtype == np.float32
    assert np.abs(action - rows["base_action"]).max() > 0.3
    np.testing.assert_allclose(action, by_torch(networks, rows, noise), atol=2e-6)


def test_weights_that_the_networks_takes_are_in_force_at_once():
    networks, other = make_networks(seed=0), make_networks(seed=1)
    actor = NumpyActor(networks)
    rows, noise = make_rows(8)
    before = by_numpy(actor, rows, noise)
    other.normalizer.fit(torch.randn(50, 10) * 2)
    other.residual_scale.fill_(0.3)
    networks.load_state_dict(other.state_dict())
    after = by_numpy(actor, rows, noise)
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, by_torch(other, rows, noise), atol=2e-6)


def test_without_residual_the_base_action_is_executed_bit_for_bit():
    networks = make_networks()
    networks.residual_scale.fill_(0.0)
    rows, noise = make_rows(8)
    rows["base_action"] *= 0.4  # inside the bounds
    np.testing.assert_array_equal(by_numpy(NumpyActor(networks), rows, noise), rows["base_action"])


def test_vectors_of_any_shape_are_flattened_as_the_networks_do():
    generator = torch.Generator().manual_seed(0)
    for shape in ((), (2, 3)):
        spaces = {
            KEYS[0]: gym.spaces.Box(-1, 1, shape, np.float32),
            KEYS[1]: gym.spaces.Box(-1, 1, (2,), np.float32),
            "base_action": gym.spaces.Box(-1, 1, (3,), np.float32),
        }
        params = ResidualSACParams(residual_dims=[], hidden_dims=[8], init_final=1.0)
        networks = ResidualNetworks.of_spaces(
            gym.spaces.Dict(spaces), gym.spaces.Box(-1, 1, (3,), np.float32), params
        )
        assert NumpyActor.stands_for(networks)
        rows = {k: torch.randn((5, *s.shape), generator=generator) for k, s in spaces.items()}
        rows = {key: values.numpy() for key, values in rows.items()}
        noise = np.ones((5, 3), np.float32)
        action, _ = Actor(networks).act(rows, noise)
        np.testing.assert_allclose(action, by_torch(networks, rows, noise), atol=2e-6)


def test_discrete_grippers_are_left_to_the_networks():
    assert NumpyActor.stands_for(make_networks())
    assert not NumpyActor.stands_for(make_networks(gripper="discrete", gripper_dims=[2]))
