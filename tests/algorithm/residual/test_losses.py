"""Every equation against numbers worked out by hand and against a loop written from the formula."""

import math

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from pld_ray.algorithm import ensemble
from pld_ray.algorithm.residual import losses

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


# --- compose_action ------------------------------------------------------------------------------


def test_compose_action_by_hand():
    base = torch.tensor([[0.5, -0.9, 0.2]])
    delta = torch.tensor([[0.5, -0.5, 1.0]])
    action = losses.compose_action(base, delta, 0.4, torch.tensor([1.0, 0.5, 0.0]))
    # 0.5 + 0.4*0.5; -0.9 - 0.4*0.5*0.5 clipped at -1; third dimension untouched
    torch.testing.assert_close(action, torch.tensor([[0.7, -1.0, 0.2]]))


def test_compose_action_respects_bounds_per_dimension(rng):
    base, delta = torch.zeros(5, 2), torch.full((5, 2), 0.9)
    low, high = torch.tensor([-1.0, -0.1]), torch.tensor([1.0, 0.1])
    action = losses.compose_action(base, delta, 1.0, torch.ones(2), low, high)
    torch.testing.assert_close(action, torch.tensor([[0.9, 0.1]]).expand(5, 2))


def test_zero_residual_leaves_the_base_action_bit_for_bit(rng):
    base = torch.rand(100, 7, generator=rng) * 2 - 1
    delta = torch.rand(100, 7, generator=rng)
    for scale, residual in ((0.7, torch.zeros(100, 7)), (0.0, delta)):
        assert torch.equal(losses.compose_action(base, residual, scale, torch.ones(7)), base)


# --- squashed Gaussian ---------------------------------------------------------------------------


def test_log_prob_against_torch_distributions(rng):
    mean, log_std = torch.randn(32, 5, generator=rng), torch.randn(32, 5, generator=rng) * 0.3
    noise = torch.randn(4, 32, 5, generator=rng)
    dims = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.0])
    delta, log_prob = losses.sample_residual(mean, log_std, noise, dims)

    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    u = mean + log_std.exp() * noise
    reference = Normal(mean, log_std.exp()).log_prob(u)
    reference = reference - TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))
    active = torch.tensor([True, True, False, True, False])
    torch.testing.assert_close(log_prob, reference[..., active].sum(-1), **TOLERANCE)
    torch.testing.assert_close(delta[..., active], torch.tanh(u)[..., active])
    assert torch.equal(delta[..., ~active], torch.zeros(4, 32, 2))
    # the transformed distribution agrees wherever atanh(tanh(u)) is still exact
    moderate = (u.abs() < 3).all(-1)
    inverted = squashed.log_prob(torch.tanh(u))[..., active].sum(-1)
    torch.testing.assert_close(log_prob[moderate], inverted[moderate], rtol=1e-3, atol=1e-3)


def test_log_prob_by_hand():
    delta, log_prob = losses.sample_residual(
        torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1)
    )
    assert delta.item() == 0.0
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi))


def test_log_prob_is_finite_far_out():
    u = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    log_prob = losses.residual_log_prob(u, torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(1))
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert u.grad.isfinite().all()


def test_log_prob_gradients_against_torch_distributions(rng):
    mean = torch.randn(16, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    log_std = (torch.randn(16, 3, generator=rng, dtype=torch.float64) * 0.3).requires_grad_()
    noise = torch.randn(16, 3, generator=rng, dtype=torch.float64)
    _, log_prob = losses.sample_residual(mean, log_std, noise, torch.ones(3).double())
    ours = torch.autograd.grad(log_prob.sum(), (mean, log_std))
    normal = Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    jacobian = TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))
    reference = torch.autograd.grad((normal.log_prob(u) - jacobian).sum(), (mean, log_std))
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b)


# --- ensemble and target -------------------------------------------------------------------------


def test_reduce_ensemble_by_hand():
    q = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    assert ensemble.reduce_ensemble(q, "min").tolist() == [1.0, 2.0]
    assert ensemble.reduce_ensemble(q, "mean").tolist() == [2.0, 3.0]


def test_draw_members_are_distinct_and_cover_the_ensemble(rng):
    assert ensemble.draw_members(2, 2, rng) is None
    seen = set()
    for _ in range(200):
        members = ensemble.draw_members(5, 2, rng).tolist()
        assert len(set(members)) == 2
        seen.add(tuple(sorted(members)))
    assert len(seen) == 10  # every pair of five


def test_td_target_by_hand():
    # two critics, two candidates, two transitions; the second one terminated
    q_next = torch.tensor([[[1.0, 9.0], [3.0, 9.0]], [[2.0, 9.0], [0.5, 9.0]]])
    log_prob = torch.tensor([[-1.0, 0.0], [2.0, 0.0]])
    reward, discount = torch.tensor([0.0, 1.0]), torch.tensor([0.9, 0.0])
    # min over critics: [1, 0.5]; minus 0.5*log_prob: [1.5, -0.5]; max 1.5; 0.9*1.5
    target = losses.td_target(reward, discount, q_next, log_prob, 0.5)
    torch.testing.assert_close(target, torch.tensor([1.35, 1.0]))
    # without the entropy: max(1, 0.5)
    target = losses.td_target(reward, discount, q_next, log_prob, 0.5, backup_entropy=False)
    torch.testing.assert_close(target, torch.tensor([0.9, 1.0]))
    # mean over critics: [1.5, 1.75]
    target = losses.td_target(reward, discount, q_next, log_prob, 0.5, "mean", False)
    torch.testing.assert_close(target, torch.tensor([1.575, 1.0]))


@pytest.mark.parametrize("reduction", ["min", "mean"])
@pytest.mark.parametrize("backup_entropy", [True, False])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (2, 1), (2, 8), (3, 4)])
def test_td_target_against_a_loop(rng, reduction, backup_entropy, m, k):
    b, alpha = 16, 0.2
    q_next, log_prob = torch.randn(m, k, b, generator=rng), torch.randn(k, b, generator=rng)
    reward = torch.randn(b, generator=rng)
    discount = torch.rand(b, generator=rng) * (torch.rand(b, generator=rng) > 0.3)
    expected = []
    for i in range(b):
        best = -math.inf
        for j in range(k):
            members = [q_next[n, j, i].item() for n in range(m)]
            value = min(members) if reduction == "min" else sum(members) / m
            if backup_entropy:
                value -= alpha * log_prob[j, i].item()
            best = max(best, value)
        expected.append(reward[i].item() + discount[i].item() * best)
    target = losses.td_target(reward, discount, q_next, log_prob, alpha, reduction, backup_entropy)
    torch.testing.assert_close(target, torch.tensor(expected), **TOLERANCE)


# --- losses and their gradients ------------------------------------------------------------------


def test_critic_loss_by_hand():
    q, target = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([0.0, 2.0])
    # ((1 + 0) / 2) + ((0 + 4) / 2)
    assert losses.critic_loss(q, target).item() == pytest.approx(2.5)


def test_critic_loss_and_gradient_against_a_loop(rng):
    n, b = 3, 8
    q, target = torch.randn(n, b, generator=rng, requires_grad=True), torch.randn(b, generator=rng)
    loss = losses.critic_loss(q, target)
    (gradient,) = torch.autograd.grad(loss, q)
    expected = sum((q[i, j].item() - target[j].item()) ** 2 / b for i in range(n) for j in range(b))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    for i in range(n):
        for j in range(b):
            slope = 2 * (q[i, j].item() - target[j].item()) / b
            assert gradient[i, j].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_conservative_loss_by_hand():
    q_policy = torch.tensor([[0.5, 0.1], [0.3, 0.3]])
    q_data = torch.tensor([[0.2, 0.2], [0.3, 0.1]])
    # means of (0.3, -0.1) and (0.0, 0.2)
    assert losses.conservative_loss(q_policy, q_data).item() == pytest.approx(0.1 + 0.1)
    assert losses.conservative_loss(q_data, q_data).item() == 0.0


def test_actor_loss_by_hand():
    q = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    log_prob, delta = torch.tensor([2.0, -2.0]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    # 0.1*log_prob - min: (0.2 - 1, -0.2 - 0); mean -0.5
    assert losses.actor_loss(q, log_prob, delta, 0.1).item() == pytest.approx(-0.5)
    # mean over critics: (0.2 - 2, -0.2 - 1); mean -1.5
    assert losses.actor_loss(q, log_prob, delta, 0.1, "mean").item() == pytest.approx(-1.5)
    # penalty: 0.4 * mean(1, 0.5)
    penalised = losses.actor_loss(q, log_prob, delta, 0.1, "min", 0.4)
    assert penalised.item() == pytest.approx(-0.5 + 0.3)


@pytest.mark.parametrize("reduction", ["min", "mean"])
def test_actor_loss_and_gradient_against_a_loop(rng, reduction):
    n, b, a, alpha, penalty = 3, 8, 4, 0.3, 0.2
    q = torch.randn(n, b, generator=rng, requires_grad=True)
    log_prob = torch.randn(b, generator=rng, requires_grad=True)
    delta = torch.rand(b, a, generator=rng, requires_grad=True)
    loss = losses.actor_loss(q, log_prob, delta, alpha, reduction, penalty)
    dq, dlog, ddelta = torch.autograd.grad(loss, (q, log_prob, delta))
    total = 0.0
    for j in range(b):
        members = [q[i, j].item() for i in range(n)]
        value = min(members) if reduction == "min" else sum(members) / n
        total += alpha * log_prob[j].item() - value
        total += penalty * sum(delta[j, d].item() ** 2 for d in range(a))
        assert dlog[j].item() == pytest.approx(alpha / b, rel=1e-5)
        for i in range(n):
            share = float(members[i] == min(members)) if reduction == "min" else 1 / n
            assert dq[i, j].item() == pytest.approx(-share / b, rel=1e-5, abs=1e-7)
        for d in range(a):
            slope = 2 * penalty * delta[j, d].item() / b
            assert ddelta[j, d].item() == pytest.approx(slope, rel=1e-5)
    assert loss.item() == pytest.approx(total / b, rel=1e-5)


def test_q_is_asked_within_reach_of_what_acts_and_pulls_no_further():
    acting = torch.tensor([[0.0, 0.5, -0.9]])
    delta = torch.tensor([[0.1, 0.9, -0.2]], requires_grad=True)
    judged = losses.within_reach(delta, acting, 0.25)
    torch.testing.assert_close(judged, torch.tensor([[0.1, 0.75, -0.65]]))
    (gradient,) = torch.autograd.grad(judged.sum(), delta)
    assert gradient.tolist() == [[1, 0, 0]]
    assert losses.proximal_loss(delta, acting).item() == pytest.approx(0.01 + 0.16 + 0.49)


def test_temperature_loss_value_and_gradient():
    log_alpha = torch.tensor([-2.0], requires_grad=True)
    log_prob = torch.tensor([1.0, 3.0], requires_grad=True)
    loss = losses.temperature_loss(log_alpha, log_prob, -0.5)
    # -log_alpha * (mean(log_prob) + H) = 2 * (2 - 0.5)
    assert loss.item() == pytest.approx(3.0)
    loss.backward()
    assert log_alpha.grad.item() == pytest.approx(-1.5)
    assert log_prob.grad is None


def test_temperature_rises_when_the_entropy_is_below_its_target():
    log_alpha = torch.tensor([0.0], requires_grad=True)
    log_prob = torch.full((4,), 3.0)  # entropy -3, below the target -1.5
    losses.temperature_loss(log_alpha, log_prob, -1.5).backward()
    assert log_alpha.grad.item() < 0  # descent raises alpha


def test_entropy_target():
    dims = torch.tensor([1.0, 1.0, 0.5, 0.0])
    assert losses.entropy_target(dims).item() == pytest.approx(-1.5)
    assert losses.entropy_target(dims, target_entropy=-7.0).item() == pytest.approx(-7.0)
    scaled = losses.entropy_target(dims, None, torch.tensor(0.5), scale_entropy_target=True)
    expected = -1.5 - math.log(0.5) - math.log(0.5) - math.log(0.25)
    assert scaled.item() == pytest.approx(expected, rel=1e-5)
    # EXPO: log pi of the scaled residual meets the target that is given; the scale enters once
    log_prob = torch.full((4,), 1.5)  # of dims * 0.5 * delta: an entropy of -1.5
    of_delta = log_prob + math.log(0.5) + math.log(0.5) + math.log(0.25)
    log_alpha = torch.zeros(1, requires_grad=True)
    losses.temperature_loss(log_alpha, of_delta, scaled).backward()
    assert log_alpha.grad.item() == pytest.approx(0.0, abs=1e-6)
    at_start = losses.entropy_target(dims, None, torch.tensor(0.0), scale_entropy_target=True)
    assert at_start.isfinite()
