"""Cameras under the flow and the Gaussian, and what the critics make of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chunked_fixtures import CAMERA, SMALL_CNN, A, D, H, make_update, pictures, state

from pld_ray.algorithm.chunked.micro_batches import MicroBatch
from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.networks.augmentation import random_shift

FROZEN = {"freeze_vision_encoder": True}
ACTORS = [{}, {"improvement": "distill"}, {"actor": "gaussian", "improvement": "sac"}]


def seeing(**options):
    return make_update(**{**SMALL_CNN, **options})


def changed(before, module):
    return {key for key, new in module.state_dict().items() if not torch.equal(new, before[key])}


def observation(rows=3):
    state = np.random.default_rng(1).standard_normal((rows, D)).astype(np.float32)
    return {"observation.state": state, CAMERA: pictures(9, rows)}


@pytest.mark.parametrize("options", ACTORS)
def test_each_loss_trains_its_own_encoder(options):
    update = seeing(**options)
    networks, part = update.networks, MicroBatch(update.sample())
    before = state(networks)
    update.update_critic([part])
    assert {key.split(".")[0] for key in changed(before, networks)} == {"critic", "critic_encoder"}
    assert "critic_encoder.backbone.layers.0.weight" in changed(before, networks)
    before = state(networks)
    update.update_actor([part])
    assert {key.split(".")[0] for key in changed(before, networks)} == {"actor"}
    assert any("backbone" in key for key in changed(before, networks))
    if "one_step" in trained_parameters(networks):  # reads the flow's encoder, trains nothing of it
        before = state(networks)
        update.update_one_step([part])
        assert all(key.startswith("actor.one_step.") for key in changed(before, networks))
    groups = [id(p) for group in trained_parameters(networks).values() for p in group]
    assert len(groups) == len(set(groups))


def test_gradients_of_convolutions_lie_as_their_parameters_do():
    update = seeing()  # pictures have their channels last, and gradients follow the pictures
    update.step(update.draw())
    groups = trained_parameters(update.networks)
    for parameter in (p for name in ("critic", "flow") for p in groups[name]):
        assert parameter.grad.stride() == parameter.stride(), tuple(parameter.shape)


def test_the_average_and_the_targets_follow_with_their_encoders():
    update = seeing(ema_decay=0.5, tau=0.25)
    networks = update.networks
    before = state(networks)
    update.step(update.draw())
    after, weight = state(networks), "heads.0.project.0.weight"
    for slow, fast, share in (
        (f"ema_actor.encoder.{weight}", f"actor.encoder.{weight}", 0.5),
        (f"target_encoder.{weight}", f"critic_encoder.{weight}", 0.25),
    ):
        expected = before[slow].lerp(after[fast], share)
        torch.testing.assert_close(after[slow], expected)
        assert not torch.equal(expected, before[slow])


def test_images_of_a_trained_encoder_are_shifted_and_those_of_a_frozen_one_are_features():
    update, twin = seeing(), seeing(random_shift_pad=0)
    plain, batch = twin.sample(), update.sample()
    generator = torch.Generator().manual_seed(0)
    for key in (CAMERA, f"next.{CAMERA}"):
        assert torch.equal(batch[key], random_shift(plain[key], 4, generator))
    frozen = seeing(**FROZEN)
    assert not any("images" in key for key in frozen.replay.online.schema.columns)
    assert not any("backbone" in key for key in frozen.networks.state_dict())
    frozen.run(2)


@pytest.mark.parametrize("fusion", ["concat", "add", "mlp"])
def test_acting_is_the_choice_of_the_critics_among_the_average_s_candidates(fusion):
    update = seeing(fusion=fusion)
    update.run(2)
    networks = update.networks
    given = {k: torch.from_numpy(v) for k, v in observation().items()}
    noise = torch.randn(5, 3, H, A, generator=torch.Generator().manual_seed(0))
    vector = networks.normalizer(given["observation.state"])
    images = {CAMERA: given[CAMERA]}
    chunks = networks.ema_actor.sample(networks.ema_actor.encoder(vector, images), noise)
    x = networks.critic_encoder(vector, images)
    width = {"concat": D + 8}.get(fusion, 8)
    assert x.shape == (3, width)
    q = torch.stack([networks.critic(x, None, c.flatten(-2)).mean(0) for c in chunks])
    expected = networks.from_unit(chunks[q.argmax(0), torch.arange(3)])
    torch.testing.assert_close(networks.act(given, noise), expected)


def test_other_images_are_another_observation():
    update = seeing()
    noise = torch.randn(4, 3, H, A, generator=torch.Generator().manual_seed(0))
    given = {k: torch.from_numpy(v) for k, v in observation().items()}
    other = {**given, CAMERA: 255 - given[CAMERA]}
    with torch.no_grad():
        one, two = (update.networks.act(o, noise) for o in (given, other))
    assert not torch.allclose(one, two)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "mlp"}, "fusion='mlp': must be concat where the state is all that is seen"),
        (
            {"actor": "lerobot", "actor_path": "x", "vision_encoder_name": "cnn"},
            "vision_encoder_name='cnn': must be none with actor=lerobot, which reads cameras",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_update(**options)


def test_the_target_critics_see_the_successor_through_their_own_encoder():
    update = seeing(num_subsample_critics=3, target_reduction="mean")
    networks, batch = update.networks, update.sample()
    for p in networks.target_encoder.parameters():  # elsewhere than the encoder
        p.data.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    kept = update.generator.get_state()
    with torch.no_grad():
        y, _ = update.td_target(batch)
        update.generator.set_state(kept)
        seen = networks.seen(batch, successor=True)
        candidates = networks.actor.sample(networks.actor.observe(*seen), update.noise(2, 16, H, A))
        chunk = networks.choose(networks.critic_encoder(*seen), candidates)
        x = networks.target_encoder(*seen)
        q = networks.outputs(networks.target_critic, x, chunk)
        expected = batch["reward"] + batch["discount"] * q.mean(0)
    torch.testing.assert_close(y, expected)
