"""Losses, targets and gradients against the published formulas and numbers done by hand.

The references are written from the formulas of ColinQiyangLi/qc and seohongpark/fql, on shared
arrays; their time t is 1 - tau, their velocity a - z is ours with the other sign.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.actor import ChunkNetwork, DistilledActor, FlowActor

B, H, A, D, N = 6, 4, 3, 5, 2


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def tensor(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def flow(rng, improvement="best_of_n", steps=10):
    torch.manual_seed(int(rng.integers(100)))
    actor = FlowActor(D, H, A, [16, 16], steps)
    if improvement == "distill":
        return DistilledActor(actor, ChunkNetwork(D, H, A, [16, 16], timed=False))
    return actor


def gradients(loss, module):
    parameters = list(module.parameters())
    return torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)


# --- the flow ------------------------------------------------------------------------------------


def test_flow_time_is_beta_three_halves_one(rng):
    drawn = losses.flow_time(torch.from_numpy(rng.random(200_000)))
    of_beta = 0.999 * rng.beta(1.5, 1.0, 200_000) + 0.001
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        found = np.quantile(drawn.numpy(), share)
        assert found == pytest.approx(np.quantile(of_beta, share), abs=0.005)
    assert drawn.min() > 0.001
    assert drawn.max() <= 1.0


def test_the_path_runs_from_data_to_noise():
    chunks, noise = torch.full((1, 2, 1), 2.0), torch.full((1, 2, 1), -1.0)
    x, target = losses.flow_path(chunks, noise, torch.tensor([0.25]))
    assert x.flatten().tolist() == pytest.approx([0.25 * -1 + 0.75 * 2] * 2)
    assert target.flatten().tolist() == [-3.0, -3.0]


def test_flow_cloning_is_qc_s_with_the_other_sign(rng):
    """QC: x_t = (1 - t) z + t a, v_QC regressed onto a - z, mean over valid steps."""
    actor = flow(rng)
    observation, chunks, noise = tensor(rng, B, D), tensor(rng, B, H, A), tensor(rng, B, H, A)
    tau = torch.from_numpy(rng.random(B).astype(np.float32))
    valid = torch.from_numpy(rng.random((B, H)) < 0.7).float()
    loss = actor.bc_loss(observation, chunks, valid, noise, tau)

    t = (1.0 - tau)[:, None, None]
    x_t = (1.0 - t) * noise + t * chunks
    predicted = -actor.velocity(actor.velocity.context(observation), x_t, 1.0 - t[:, 0, 0])
    error = ((predicted - (chunks - noise)) ** 2).mean(-1)  # per step
    reference = (error * valid).sum() / valid.sum()
    assert loss.item() == pytest.approx(reference.item(), abs=1e-5)
    for ours, theirs in zip(gradients(loss, actor), gradients(reference, actor), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_steps_past_the_end_and_negative_windows_teach_nothing(rng):
    actor = flow(rng)
    observation, chunks, noise = tensor(rng, B, D), tensor(rng, B, H, A), tensor(rng, B, H, A)
    tau = torch.full((B,), 0.4)
    weights = torch.ones(B, H)
    weights[0, 2:] = 0
    weights[1] = 0
    loss = actor.bc_loss(observation, chunks, weights, noise, tau)
    spoilt, noisy = chunks.clone(), noise.clone()
    spoilt[1], noisy[1] = 7.0, -3.0
    assert actor.bc_loss(observation, spoilt, weights, noisy, tau).item() == loss.item()
    none = actor.bc_loss(observation, chunks, torch.zeros(B, H), noise, tau)
    assert none.item() == 0.0
    assert all(not g.any() for g in gradients(none, actor))


def test_integration_is_fql_s_euler_with_its_time(rng):
    """FQL: for i in range(K): x += v_FQL(x, i / K) / K; then clip to [-1, 1]."""
    actor = flow(rng, steps=7)
    observation, noise = tensor(rng, B, D), tensor(rng, 2, B, H, A)
    chunks = actor.sample(observation, noise)
    context, x = actor.velocity.context(observation), noise
    for i in range(7):
        x = x + (-actor.velocity(context, x, 1.0 - i / 7)) / 7
    torch.testing.assert_close(chunks, x.clamp(-1, 1), atol=1e-5, rtol=0)
    one = actor.sample(observation[1:2], noise[:, 1:2])
    torch.testing.assert_close(chunks[:, 1:2], one, atol=1e-5, rtol=0)


def test_a_flow_of_known_velocity_arrives():
    """x' = -z + a does not depend on x: Euler is exact and ends at a, clipped."""
    noise = torch.tensor([[[0.5, -2.0]]])
    goal = torch.tensor([[[0.25, 3.0]]])
    found = losses.integrate(lambda x, tau: noise - goal, noise, 10)
    assert found.flatten().tolist() == pytest.approx([0.25, 1.0])


# --- critics -------------------------------------------------------------------------------------


def test_target_and_critic_loss_by_hand():
    """Two windows: m = 3 ended in success, m = 2 was cut and bootstraps."""
    gamma = 0.9
    reward = torch.tensor([0.0 + 0.9 * 0.0 + 0.81 * 1.0, 0.5 + 0.9 * 0.25])
    discount = torch.tensor([gamma**3 * 0.0, gamma**2])
    q_next = torch.tensor([[5.0, 0.4], [7.0, 0.6]])
    y = losses.td_target(reward, discount, q_next, "min")
    assert y.tolist() == pytest.approx([0.81, 0.725 + 0.81 * 0.4])
    assert losses.td_target(reward, discount, q_next, "mean")[1].item() == pytest.approx(1.13)
    weighted = losses.td_target(
        reward, discount, q_next, "weighted", torch.tensor([0.0, float(np.log(3))])
    )
    assert weighted[1].item() == pytest.approx(0.725 + 0.81 * (0.25 * 0.4 + 0.75 * 0.6))
    q = torch.tensor([[0.81, 1.0], [0.0, 0.0]])
    w = torch.tensor([1.0, 1.0])
    y = torch.tensor([1.81, 0.0])
    assert losses.critic_loss(q, y, w).item() == pytest.approx((1 + 1.81**2 + 1) / 2)
    assert losses.critic_loss(q, y, torch.tensor([1.0, 0.0])).item() == pytest.approx(1 + 1.81**2)


@pytest.mark.parametrize("aggregate", ["min", "mean"])
def test_critic_loss_is_qc_s(rng, aggregate):
    """QC: mean over members and windows of (Q - R - gamma^H mask agg Q')^2 * valid[:, -1]."""
    gamma = 0.99
    net = nn.Linear(D, N)
    rewards = rng.random((B, H))
    mask = (rng.random(B) < 0.7).astype(np.float64)
    q_next = rng.standard_normal((N, B))
    accumulated = (rewards * gamma ** np.arange(H)).sum(1)
    next_q = q_next.min(0) if aggregate == "min" else q_next.mean(0)
    target_q = torch.from_numpy(accumulated + gamma**H * mask * next_q)
    valid = torch.from_numpy((rng.random(B) < 0.6).astype(np.float32))
    q = net(tensor(rng, B, D)).T
    reference = ((q - target_q) ** 2 * valid).mean()

    y = losses.td_target(
        torch.from_numpy(accumulated),
        torch.from_numpy(gamma**H * mask),
        torch.from_numpy(q_next),
        aggregate,
    )
    torch.testing.assert_close(y, target_q, atol=1e-5, rtol=0)
    loss = losses.critic_loss(q, y, valid)
    # theirs is a mean over N and B, ours a sum over N and a mean over the windows that count
    scale = B * N / valid.sum()
    assert loss.item() == pytest.approx((reference * scale).item(), abs=1e-5)
    for ours, theirs in zip(gradients(loss, net), gradients(reference * scale, net), strict=True):
        torch.testing.assert_close(ours, theirs.to(ours), atol=1e-5, rtol=0)


def test_the_cross_entropy_counts_windows_as_the_square_does(rng):
    log_prob = torch.log_softmax(tensor(rng, N, B, 7), -1)
    target = torch.softmax(tensor(rng, B, 7), -1)
    weights = torch.tensor([1.0, 0, 1, 1, 0, 1])
    expected = 0.0
    for member in range(N):
        for window in range(B):
            entropy = -(log_prob[member, window] * target[window]).sum()
            expected += float(weights[window] * entropy)
    found = losses.categorical_loss(log_prob, target, weights)
    assert found.item() == pytest.approx(expected / 4, abs=1e-5)


def test_the_best_candidate_is_chosen_row_by_row():
    chunks = torch.arange(6.0).reshape(3, 2, 1, 1)
    q = torch.tensor([[[0.0, 3.0], [1.0, 0.0], [0.5, 0.0]], [[0.0, -9.0], [1.0, 0.0], [5.0, 0.0]]])
    assert losses.best_candidate(chunks, q, "mean").flatten().tolist() == [4.0, 3.0]
    assert losses.best_candidate(chunks, q, "min").flatten().tolist() == [2.0, 3.0]


# --- distillation --------------------------------------------------------------------------------


def test_distillation_is_fql_s(rng):
    """FQL: alpha * mean (mu - flow)^2 - mean over members and batch of Q(clip mu)."""
    actor = flow(rng, "distill")
    critic = nn.Linear(D + H * A, N)
    observation, noise = tensor(rng, B, D), 2 * tensor(rng, B, H, A)

    def q_of(chunks):
        return critic(torch.cat([observation, chunks.flatten(1)], 1)).T

    with torch.no_grad():
        flow_chunks = actor.flow.sample(observation, noise)
    proposed = actor.propose(observation, noise)
    q = q_of(proposed.clamp(-1, 1))
    loss = losses.distill_loss(proposed, flow_chunks, q, 10.0, "mean")
    reference = 10.0 * ((proposed - flow_chunks) ** 2).mean() - q.mean(0).mean()
    assert loss.item() == pytest.approx(reference.item(), abs=1e-5)
    of_loss, of_reference = gradients(loss, actor.one_step), gradients(reference, actor.one_step)
    for ours, theirs in zip(of_loss, of_reference, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert all(g is None for g in gradients(loss, actor.flow))


def test_the_temperature_s_loss_leaves_the_policy_alone():
    log_alpha = torch.tensor([-0.5], requires_grad=True)
    log_prob = torch.tensor([1.0, 3.0], requires_grad=True)
    loss = losses.temperature_loss(log_alpha, log_prob, -5.0)
    assert loss.item() == pytest.approx(0.5 * (2.0 - 5.0))
    loss.backward()
    assert log_alpha.grad.item() == pytest.approx(3.0)
    assert log_prob.grad is None
