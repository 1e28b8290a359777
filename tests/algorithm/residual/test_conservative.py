"""Cal-QL's regulariser against hand-computed numbers, a loop over samples, and its guarantees."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.algorithm.residual import conservative

N, S, B = 2, 10, 16


def random_inputs(seed, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

    return {
        "q_data": normal(N, B),
        "q_random": normal(N, S, B),
        "q_policy": normal(N, S, B),
        "q_next_policy": normal(N, S, B),
        "log_prob_policy": torch.randn(S, B, generator=g, dtype=dtype),
        "log_prob_next_policy": torch.randn(S, B, generator=g, dtype=dtype),
        "log_density_random": -3 * math.log(2),
        "mc_return": torch.randn(B, generator=g, dtype=dtype),
    }


def loop(i, calibrated=True, temperature=1.0):
    """The same from the paper, one critic, one row, one sample at a time, in double precision."""
    result = []
    for n in range(N):
        total = 0.0
        for b in range(B):
            values = []
            for s in range(S):
                values.append(i["q_random"][n, s, b] - i["log_density_random"])
                for q, log_prob in (
                    (i["q_policy"], i["log_prob_policy"]),
                    (i["q_next_policy"], i["log_prob_next_policy"]),
                ):
                    value = q[n, s, b]
                    if calibrated and value < i["mc_return"][b]:
                        value = i["mc_return"][b]
                    values.append(value - log_prob[s, b])
            exps = sum(torch.exp(v / temperature) for v in values)
            total = total + temperature * torch.log(exps) - i["q_data"][n, b]
        result.append(total / B)
    return torch.stack(result)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_values_and_gradients_equal_a_loop_from_the_paper(seed, temperature):
    ours, reference = random_inputs(seed), random_inputs(seed)
    value = conservative.conservative_regularizer(**ours, temperature=temperature)
    expected = loop(reference, temperature=temperature)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    names = ("q_data", "q_random", "q_policy", "q_next_policy")
    gradients = torch.autograd.grad(value.sum(), [ours[n] for n in names])
    wanted = torch.autograd.grad(expected.sum(), [reference[n] for n in names])
    for name, a, b in zip(names, gradients, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=name)


def test_by_hand():
    # one critic, one row, one action of each kind; G = 0.5 lifts Q(x, a_pi) = 0.2 and not 0.9
    one = torch.ones(1, 1)
    value = conservative.conservative_regularizer(
        q_data=0.4 * one,
        q_random=0.1 * one[None],
        q_policy=0.2 * one[None],
        q_next_policy=0.9 * one[None],
        log_prob_policy=0.3 * one,
        log_prob_next_policy=-0.1 * one,
        log_density_random=-math.log(2),
        mc_return=torch.tensor([0.5]),
    )
    expected = math.log(math.exp(0.1 + math.log(2)) + math.exp(0.2) + math.exp(1.0)) - 0.4
    assert value.item() == pytest.approx(expected, rel=1e-6)


@settings(max_examples=50)
@given(st.integers(0, 10**6))
def test_a_policy_action_below_the_return_is_never_pushed_down(seed):
    i = random_inputs(seed)
    value = conservative.conservative_regularizer(**i)
    for name in ("q_policy", "q_next_policy"):
        (gradient,) = torch.autograd.grad(value.sum(), [i[name]], retain_graph=True)
        below = i[name] < i["mc_return"]
        assert below.any()
        assert (gradient[below] == 0).all()
        assert (gradient[~below] > 0).all()  # above it, descent pushes it down
    (gradient,) = torch.autograd.grad(value.sum(), [i["q_random"]])
    assert (gradient > 0).all()  # random actions are pushed down wherever they are


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_without_a_bound_it_is_cql(seed):
    i = random_inputs(seed)
    unbounded = i | {"mc_return": torch.full((B,), -math.inf)}
    value = conservative.conservative_regularizer(**unbounded)
    torch.testing.assert_close(value, loop(i, calibrated=False), rtol=1e-5, atol=1e-5)
    parts = [
        i["q_random"] - i["log_density_random"],
        i["q_policy"] - i["log_prob_policy"],
        i["q_next_policy"] - i["log_prob_next_policy"],
    ]
    cql = torch.logsumexp(torch.cat(parts, 1), 1) - i["q_data"]
    torch.testing.assert_close(value, cql.mean(1), rtol=1e-6, atol=1e-6)


def test_bound_rate_counts_what_lies_below():
    q = torch.tensor([[[0.1, 0.9], [0.4, 0.2]]])
    assert conservative.bound_rate(q, torch.tensor([0.3, 0.5])).item() == 0.5
    assert conservative.bound_rate(q, torch.full((2,), -math.inf)).item() == 0.0


def test_uniform_density_integrates_to_one():
    assert math.exp(conservative.uniform_log_density(3)) * 2**3 == pytest.approx(1.0)


@pytest.mark.parametrize(("regularizer", "rises"), [(2.0, True), (0.5, False)])
def test_the_multiplier_rises_above_the_gap_and_falls_below(regularizer, rises):
    log_multiplier = torch.zeros((), requires_grad=True)
    loss = conservative.lagrange_loss(log_multiplier, torch.full((2,), regularizer), 1.0)
    (gradient,) = torch.autograd.grad(loss, [log_multiplier])
    assert gradient.item() == pytest.approx(-2 * (regularizer - 1.0))
    assert (-gradient > 0) == rises  # a descent step moves against the gradient


def test_an_action_that_is_worth_the_return_is_not_below_it():
    q = torch.tensor([[[0.3, 0.2]]])
    assert conservative.bound_rate(q, torch.tensor([0.3, 0.3])).item() == 0.5


def test_the_multiplier_is_the_exponential_and_the_critic_learns_nothing_of_it():
    log_multiplier = torch.tensor(math.log(3.0), requires_grad=True)
    regularizer = torch.tensor([2.0, 4.0], requires_grad=True)
    loss = conservative.lagrange_loss(log_multiplier, regularizer, 1.0)
    assert loss.item() == pytest.approx(-3.0 * (1.0 + 3.0))
    loss.backward()
    assert log_multiplier.grad.item() == pytest.approx(-12.0)
    assert regularizer.grad is None
