"""Flows in bfloat16, and activations that are computed in place."""

from __future__ import annotations

import copy

import pytest
import torch
from chunked_fixtures import A, H, make_update, state
from torch import nn

from pld_ray.algorithm.chunked.actor import FlowActor

B, D, K = 6, 4, 3


def flow(dtype=torch.float32):
    torch.manual_seed(0)
    return FlowActor(D, H, A, [32, 32], 10, dtype=dtype)


def plain(actor, observation, noise):
    """The flow written out with PyTorch's own layers."""
    network, x = actor.velocity, noise.flatten(-2)
    for k in range(10):
        time = torch.full((1,), 1 - k / 10)
        hidden = network.entry(x) + network.context(observation) + network.time(time)
        for layer in network.trunk.values():
            hidden = layer(nn.functional.gelu(hidden))
        x = x - hidden / 10
    return x.clamp(-1, 1).view_as(noise)


def test_chunks_are_the_same_with_and_without_gradients_and_nothing_given_is_changed():
    actor = flow()
    observation, noise = torch.randn(B, D), torch.randn(K, B, H, A)
    kept = observation.clone(), noise.clone()
    expected = plain(actor, observation, noise)
    torch.testing.assert_close(actor.sample(observation, noise), expected)
    with torch.no_grad():
        torch.testing.assert_close(actor.sample(observation, noise), expected)
    frozen = copy.deepcopy(actor).requires_grad_(False)
    torch.testing.assert_close(frozen.sample(observation, noise), expected)
    torch.testing.assert_close((observation, noise), kept, atol=0, rtol=0)


def test_products_in_bfloat16_change_little_and_parameters_stay_float32():
    exact, half = flow(), flow(torch.bfloat16)
    observation, noise = torch.randn(B, D), torch.randn(K, B, H, A)
    chunks, expected = half.sample(observation, noise), exact.sample(observation, noise)
    assert chunks.dtype == torch.float32
    assert 0 < (chunks - expected).abs().max() < 0.02
    weights, time = torch.ones(B, H), torch.rand(B)
    arguments = observation, expected[0].detach(), weights, noise[0], time
    for actor in (exact, half):
        actor.bc_loss(*arguments).backward()
    for one, other in zip(half.parameters(), exact.parameters(), strict=True):
        assert one.dtype == one.grad.dtype == torch.float32
        error = (one.grad - other.grad).norm() / other.grad.norm()
        assert error < 0.05


@pytest.mark.parametrize("options", [{}, {"improvement": "distill"}])
def test_an_update_takes_precision_for_flow_and_critics(options):
    updates = {p: make_update(**options, precision=p) for p in ("float32", "bfloat16")}
    for update in updates.values():
        update.run(3)
    ours, exact = (state(u.networks.actor) for u in (updates["bfloat16"], updates["float32"]))
    assert all(value.dtype == torch.float32 for value in ours.values())
    moved = [(ours[name] - exact[name]).abs().max() for name in ours]
    assert 0 < max(moved) < 0.05
