"""Updates on a GPU: those of the CPU, and whatever else of a learner has to be on one device."""

import copy
import math

import pytest
import torch
from update_fixtures import make_params, make_update

from pld_ray.algorithm.nonfinite import NonFiniteLossError
from pld_ray.algorithm.residual.calql import CalQLInitialization

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
OPTIONS = [
    {},
    {"critic_atoms": 21, "success_imitation": 0.1, "ema_decay": 0.9, "conservative_weight": 0.1},
    {"otf_candidates": 3, "proximal_penalty": 0.1, "ema_decay": 0.9},
    {"actor_loss": "hg_dagger"},
]


@pytest.fixture(autouse=True)
def exact_products():
    """TensorFloat-32 would round them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def same_noise(update):
    """Normal draws that do not depend on the device."""
    generator = torch.Generator().manual_seed(5)
    update.noise = lambda *shape: torch.randn(shape, generator=generator).to(update.device)


def moved(batch, device):
    return {name: tensor.to(device) for name, tensor in batch.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_steps_equal_those_of_the_cpu(options):
    params = make_params(**options)
    cpu, gpu = make_update(params), make_update(params, device="cuda")
    batches = [cpu.draw() for _ in range(4)]
    for batch in batches:
        batch["intervened"][::2] = True
    for update in (cpu, gpu):
        same_noise(update)
        for batch in batches:
            update.step(moved(batch, update.device))
    start = make_update(params).networks.state_dict()
    for name, expected in cpu.networks.state_dict().items():
        got = gpu.networks.state_dict()[name].cpu()
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-3, msg=name)
    assert not torch.equal(start["actor.head.weight"], cpu.networks.actor.head.weight)


def test_a_run_draws_on_its_device_and_goes_on_from_its_state():
    one, other = make_update(device="cuda"), make_update(device="cuda")
    assert one.run(6)["critic_loss"] > 0
    other.networks.load_state_dict(copy.deepcopy(one.networks.state_dict()))
    other.load_state_dict(one.state_dict())
    for name, optimizer in one.optimizers.items():
        other.optimizers[name].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for ring, twin in (
        (one.replay.offline, other.replay.offline),
        (one.replay.online, other.replay.online),
    ):
        twin.generator.set_state(ring.generator.get_state())
    metrics = one.run(3)
    for name, value in other.run(3).items():
        assert math.isclose(value, metrics[name], rel_tol=1e-3, abs_tol=1e-5), name


def test_a_loss_that_is_not_finite_is_raised_before_the_run_returns():
    update = make_update(device="cuda")
    batch = update.draw()
    batch["reward"][0] = torch.nan
    update.draw = lambda: batch
    with pytest.raises(NonFiniteLossError):
        update.run(2)


@pytest.mark.parametrize("lagrange", [False, True])
def test_cal_ql_goes_on_from_its_state(lagrange):
    params = make_params(calql_steps=1, n_step=1, calql_alpha=0.7, calql_lagrange=lagrange)
    one, other = (
        CalQLInitialization(sac, sac.replay.offline)
        for sac in (make_update(params, device="cuda"), make_update(params, device="cuda"))
    )
    assert math.isfinite(one.run(3)["calql_alpha"])
    other.load_state_dict(one.state_dict())
    assert math.isfinite(other.run(2)["calql_loss"])
    assert other.steps == 5
