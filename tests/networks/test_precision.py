"""Products in bfloat16: what leaves critics and actor is float32, and close to float32's."""

import copy

import pytest
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks import CriticEnsemble, GaussianActor
from pld_ray.networks.precision import product_dtype, set_precision

OBSERVATION, ACTION, BATCH = 19, 7, 64


def twins(num_atoms: int) -> tuple[CriticEnsemble, CriticEnsemble]:
    """The same three critics, in float32 and with bfloat16 products."""
    torch.manual_seed(0)
    exact = CriticEnsemble(OBSERVATION, ACTION, 3, (64, 64), num_atoms=num_atoms)
    rounded = copy.deepcopy(exact)
    rounded.dtype = torch.bfloat16
    return exact, rounded


def inputs(candidates: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, OBSERVATION, generator=generator)
    base = torch.rand(BATCH, ACTION, generator=generator)
    return x, base, torch.rand(candidates, BATCH, ACTION, generator=generator)


@pytest.mark.parametrize("num_atoms", [1, 51])
def test_outputs_are_float32_and_off_by_bfloat16_rounding(num_atoms: int) -> None:
    exact, rounded = twins(num_atoms)
    x, base, actions = inputs()
    wanted, got = exact(x, base, actions[0]), rounded(x, base, actions[0])
    assert got.dtype == torch.float32
    spread = wanted.std()
    error = (got - wanted).abs().max()
    assert 0 < error < 0.2 * spread  # 0: nothing was rounded


@pytest.mark.parametrize("num_atoms", [1, 51])
def test_candidates_are_judged_as_single_actions_are(num_atoms: int) -> None:
    _, rounded = twins(num_atoms)
    x, base, actions = inputs()
    together = rounded.otf(x, base, actions)
    for k, action in enumerate(actions):
        torch.testing.assert_close(together[:, k], rounded(x, base, action), atol=2e-3, rtol=0.05)


@pytest.mark.parametrize("num_atoms", [1, 51])
def test_gradients_are_float32_and_point_where_float32_points(num_atoms: int) -> None:
    exact, rounded = twins(num_atoms)
    x, base, actions = inputs()
    flat = []
    for critic in (exact, rounded):
        outputs = critic.outputs(x, base, actions[0])
        loss = outputs.square().mean() if num_atoms == 1 else -outputs[..., 10].mean()
        gradients = torch.autograd.grad(loss, list(critic.parameters()))
        assert {g.dtype for g in gradients} == {torch.float32}
        flat.append(torch.cat([g.flatten() for g in gradients]))
    cosine = torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0)
    assert 0.99 < cosine < 1.0


def test_an_actor_and_its_gradients_are_off_by_bfloat16_rounding() -> None:
    torch.manual_seed(0)
    exact = GaussianActor(OBSERVATION, ACTION, (64, 64), init_final=0.1)
    rounded = copy.deepcopy(exact)
    rounded.dtype = torch.bfloat16
    x, base, _ = inputs()
    wanted, got = exact(x, base)[0], rounded(x, base)[0]
    assert got.dtype == torch.float32
    assert 0 < (got - wanted).abs().max() < 0.05 * wanted.std()
    flat = []
    for actor in (exact, rounded):
        loss = sum(output.square().mean() for output in actor(x, base))
        gradients = torch.autograd.grad(loss, list(actor.parameters()))
        assert {g.dtype for g in gradients} == {torch.float32}
        flat.append(torch.cat([g.flatten() for g in gradients]))
    assert 0.99 < torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0) < 1.0


def test_what_is_played_is_not_rounded() -> None:
    """The networks that act are the learner's where both are in one process."""
    params = ResidualSACParams(hidden_dims=[16], init_final=0.1, ema_decay=0.0)
    networks = ResidualNetworks(OBSERVATION, ACTION, params)
    x, base, _ = inputs()
    observation = {"observation.state": x, "base_action": base}
    wanted, _ = networks.act(observation)
    set_precision(networks, "bfloat16", torch.device("cpu"))
    assert not torch.equal(networks.actor(x, base)[0], networks.actor(x, base, exact=True)[0])
    assert torch.equal(networks.act(observation)[0], wanted)


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ({}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_asks_the_device_that_multiplies(
    monkeypatch: pytest.MonkeyPatch, instructions: dict[str, bool], expected: torch.dtype
) -> None:
    for name in ("is_available", "is_bf16_supported"):  # a GPU of this machine is another device
        monkeypatch.setattr(torch.cuda, name, lambda **_: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    assert product_dtype("auto", "cpu") == expected
    assert product_dtype("auto", "cuda") == torch.float32


def test_a_precision_that_is_named_is_taken_on_every_device() -> None:
    for device in ("cpu", "cuda"):
        assert product_dtype("float32", device) == torch.float32
        assert product_dtype("bfloat16", device) == torch.bfloat16


def test_every_network_of_an_update_multiplies_as_its_device_does() -> None:
    params = ResidualSACParams(precision="bfloat16", hidden_dims=[8], ema_decay=0.0)
    networks = ResidualNetworks(OBSERVATION, ACTION, params)
    networks.critic.dtype = networks.target_critic.dtype = torch.float32  # of another device
    optimizers = make_optimizers(networks, params)
    ResidualSACUpdate(networks, optimizers, None, params, seed=0)
    multiply = (networks.critic, networks.target_critic, networks.actor)
    assert {network.dtype for network in multiply} == {torch.bfloat16}
