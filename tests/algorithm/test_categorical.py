"""The categorical critic against C51 and HL-Gauss written atom by atom."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.algorithm import categorical
from pld_ray.algorithm.residual import losses

ATOMS = torch.linspace(0.0, 1.0, 11)


def projected_by_hand(probability, reward, discount, atoms):
    """Each atom's mass goes to the two atoms around where it lands."""
    spacing = float(atoms[1] - atoms[0])
    target = torch.zeros_like(probability)
    for b in range(len(probability)):
        for z, p in enumerate(probability[b]):
            landed = min(max(reward[b] + discount[b] * atoms[z], atoms[0]), atoms[-1])
            place = float((landed - atoms[0]) / spacing)
            low = min(int(place), len(atoms) - 1)
            high = min(low + 1, len(atoms) - 1)
            share = place - low
            target[b, low] += p * (1 - share)
            target[b, high] += p * share
    return target


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_projection_equals_c51_atom_by_atom(seed):
    g = torch.Generator().manual_seed(seed)
    probability = torch.softmax(torch.randn(5, 11, generator=g), -1)
    reward = torch.randn(5, generator=g) * 0.5
    discount = torch.rand(5, generator=g)
    target = categorical.project(probability, reward, discount, ATOMS)
    expected = projected_by_hand(probability, reward, discount, ATOMS)
    torch.testing.assert_close(target, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(target.sum(-1), torch.ones(5), rtol=1e-5, atol=1e-5)


def test_inside_the_range_the_projection_keeps_the_expectation():
    g = torch.Generator().manual_seed(0)
    probability = torch.softmax(torch.randn(64, 11, generator=g), -1)
    reward, discount = torch.rand(64, generator=g) * 0.1, torch.full((64,), 0.9)
    target = categorical.project(probability, reward, discount, ATOMS)
    torch.testing.assert_close(target @ ATOMS, reward + discount * (probability @ ATOMS))


def test_a_terminal_success_is_all_mass_on_one():
    probability = torch.full((1, 11), 1 / 11)
    target = categorical.project(probability, torch.ones(1), torch.zeros(1), ATOMS)
    torch.testing.assert_close(target, torch.eye(11)[10:])


def test_a_gaussian_target_is_the_integral_around_each_atom():
    """HL-Gauss: the mass between the middles to both neighbours, tails at the ends."""
    mean, std = torch.tensor([0.43, 0.97, -3.0, 7.0]), 0.75
    target = categorical.gaussian(mean, std, ATOMS)
    for row, m in zip(target, mean.clamp(0.0, 1.0).tolist(), strict=True):
        for z, mass in enumerate(row):
            below, above = (
                0.5 * (1 + math.erf((0.1 * (z + side) - m) / (0.1 * std * math.sqrt(2))))
                for side in (-0.5, 0.5)
            )
            below, above = (0.0 if z == 0 else below), (1.0 if z == 10 else above)
            assert mass.item() == pytest.approx(above - below, abs=1e-6)
    assert (target[0] @ ATOMS).item() == pytest.approx(0.43, abs=1e-3)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.7, 3.0))
def test_a_gaussian_stands_where_the_expectation_has_moved_to(seed, std):
    """It forgets the shape of the distribution and nothing of its expectation."""
    g = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-10.0, 10.0, 201)
    probability = torch.softmax(4 * torch.randn(5, 201, generator=g), -1)
    reward, discount = torch.randn(5, generator=g), torch.rand(5, generator=g) * 0.5
    target = categorical.target_distribution(probability, reward, discount, atoms, std)
    expected = reward + discount * (probability @ atoms)
    torch.testing.assert_close(target @ atoms, expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(target.sum(-1), torch.ones(5))
    spread = (target @ atoms**2 - (target @ atoms) ** 2).sqrt() / 0.1
    within = math.sqrt(std**2 + 1 / 12)  # of the Gaussian, and of the atoms' width
    torch.testing.assert_close(spread, torch.full((5,), within), rtol=0.01, atol=0)
    whole = categorical.target_distribution(probability, reward, discount, atoms, 0.0)
    assert torch.equal(whole, categorical.project(probability, reward, discount, atoms))


@pytest.mark.parametrize("reduction", ["min", "mean", "weighted"])
@pytest.mark.parametrize("backup_entropy", [True, False])
def test_the_chosen_distribution_has_the_scalar_target_as_its_expectation(
    reduction, backup_entropy
):
    """With the same Q values, y = r + discount * (E + bonus) is what the scalar critic computes."""
    g = torch.Generator().manual_seed(1)
    log_prob = torch.log_softmax(torch.randn(3, 4, 8, 11, generator=g), -1)
    log_pi = torch.randn(4, 8, generator=g) * 0.2
    logits = torch.randn(3, generator=g)
    reward, discount = torch.rand(8, generator=g), torch.rand(8, generator=g)
    probability, bonus = categorical.choose_distribution(
        log_prob, ATOMS, log_pi, 0.1, reduction, backup_entropy, logits
    )
    q = log_prob.exp() @ ATOMS
    y = losses.td_target(reward, discount, q, log_pi, 0.1, reduction, backup_entropy, logits)
    torch.testing.assert_close(reward + discount * (probability @ ATOMS + bonus), y)
    torch.testing.assert_close(probability.sum(-1), torch.ones(8))


def test_cross_entropy_and_its_gradient_by_hand():
    logits = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]], requires_grad=True)
    target = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    log_prob = torch.log_softmax(logits, -1)
    loss = categorical.cross_entropy(log_prob, target)
    p = torch.softmax(logits.detach(), -1)
    by_hand = -(0.25 * p[0, 0, 0].log() + 0.75 * p[0, 0, 1].log() + p[0, 1, 0].log()) / 2
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-6)
    loss.backward()
    torch.testing.assert_close(logits.grad, (p - target) / 2)


def test_returns_may_begin_below_zero():
    atoms = torch.linspace(-2.0, 1.0, 7)
    g = torch.Generator().manual_seed(0)
    probability = torch.softmax(torch.randn(5, 7, generator=g), -1)
    reward, discount = torch.randn(5, generator=g), torch.rand(5, generator=g)
    target = categorical.project(probability, reward, discount, atoms)
    expected = projected_by_hand(probability, reward, discount, atoms)
    torch.testing.assert_close(target, expected, rtol=1e-4, atol=1e-5)


def test_each_member_has_the_whole_cross_entropy_as_its_loss():
    g = torch.Generator().manual_seed(0)
    log_prob = torch.log_softmax(torch.randn(3, 5, 11, generator=g), -1)
    target = torch.softmax(torch.randn(5, 11, generator=g), -1)
    alone = [categorical.cross_entropy(one[None], target) for one in log_prob]
    torch.testing.assert_close(categorical.cross_entropy(log_prob, target), sum(alone))
