"""An update in micro-batches: one batch, whose windows and draws follow from their numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from chunked_fixtures import episodes, make_update

from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.micro_batches import Dealing
from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.algorithm.chunked.update import DRAWS


def gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def assert_same(parameters, expected):
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("improvement", ["best_of_n", "bptt"])
def test_micro_batches_are_one_batch(improvement):
    """Their windows, noise and targets side by side, in the formulas of a whole batch."""
    options = {"accumulation": 4, "batch_size": 32, "improvement": improvement}
    update, reference = make_update(**options), make_update(**options)
    parts = reference.draw()
    assert [part.number for part in parts] == [0, 1, 2, 3]
    positives = [float(reference.cloning_weights(part.batch).sum()) for part in parts]
    assert len(set(positives)) > 1  # or their means would do
    networks = reference.networks
    batch = {key: torch.cat([part.batch[key] for part in parts]) for key in parts[0].batch}
    x = networks.seen(batch).vector
    targets = []
    for part in parts:
        reference.draw_for(part.number, "critic")
        targets.append(reference.td_target(part.batch)[0])
    outputs = networks.outputs(networks.critic, x, batch["actions"])
    weights = reference.window_weights(batch)
    critic = losses.critic_loss(outputs, torch.cat(targets), weights)
    critic_gradients = gradients(critic, trained_parameters(networks)["critic"])

    update.step(update.draw())
    trained = trained_parameters(update.networks)
    assert_same(trained["critic"], critic_gradients)
    networks.critic.load_state_dict(update.networks.critic.state_dict())  # which then is climbed
    cloned = 0.0
    climbed = 0.0
    whole = reference.cloning_weights(batch).sum()
    for part in parts:
        reference.draw_for(part.number, "actor")
        uniform = torch.rand(8, generator=reference.generator)
        noise = reference.noise(8, *networks.actor.noise_shape)
        observation = networks.seen(part.batch).vector
        loss = networks.actor.bc_loss(
            observation,
            part.batch["actions"],
            reference.cloning_weights(part.batch),
            noise,
            losses.flow_time(uniform),
            torch.ones(()),
        )
        cloned = cloned + loss / whole
        if improvement == "bptt":
            part.observation = part.x = observation
            climbed = climbed + reference.climb(part)[0] / 4
    loss = reference.params.bc_weight * cloned + reference.params.actor_weight * climbed
    assert_same(trained["flow"], gradients(loss, trained_parameters(networks)["flow"]))


def test_what_is_drawn_follows_from_the_numbers_alone():
    update, other = (
        make_update(accumulation=3, batch_size=12),
        make_update(accumulation=3, batch_size=12),
    )
    update.updates = other.updates = 5
    other.generator.manual_seed(99)
    other.replay.seed(99)
    ours, theirs = update.sample(2), other.sample(2)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert not torch.equal(ours["row"], update.sample(1)["row"])
    update.updates = 6
    assert not torch.equal(ours["row"], update.sample(2)["row"])


@pytest.mark.parametrize("accumulation", [1, 4, 16])
def test_windows_are_shared_out_once_for_an_update(accumulation):
    update = make_update(accumulation=accumulation, batch_size=16, positive_share=1.0)
    parts = update.draw()
    offline = update.replay.offline.observations()[:, 0]
    state = torch.cat([part.batch["observation"][:, 0] for part in parts])
    assert torch.isin(state, offline).sum() == 8
    assert all(part.batch["positive"].all() for part in parts)


def test_single_windows_fill_the_positive_share_of_an_update_and_no_more(monkeypatch):
    """Every draw is of the first that may be drawn, which is of an episode that failed."""
    update = make_update(fill=False, accumulation=16, batch_size=16, positive_share=0.3)
    rings = update.replay.offline, update.replay.online
    for number, ring in enumerate(rings):
        ring.add_episodes(*episodes(number, (5, 4), (False, True)), gamma=update.params.gamma)
        zeros = partial(torch.zeros, dtype=torch.int64)
        monkeypatch.setattr(ring, "_numbers", lambda count, _, zeros=zeros: zeros(count))
    positive = [int(part.batch["positive"].sum()) for part in update.draw()]
    assert sum(positive) == 2 * 3  # ceil(0.3 * 8) of either ring
    past = update.sample(16)  # of a rank that has nothing left to do
    assert len(past["positive"]) == 1


@pytest.mark.parametrize("actor", [{}, {"actor": "gaussian", "improvement": "sac"}])
def test_one_that_counts_for_nothing_changes_nothing(actor):
    options = {"accumulation": 2, "batch_size": 8, "temperature": 0.5 if actor else 0.0, **actor}
    update, padded = make_update(**options), make_update(**options)
    padded.dealing = Dealing(2, (0, 1, 2), numbered=True)
    means = [u.run(2) for u in (update, padded)]
    assert means[0] == pytest.approx(means[1], rel=1e-5)
    for name, value in update.networks.state_dict().items():
        torch.testing.assert_close(value, padded.networks.state_dict()[name], atol=1e-6, rtol=1e-5)


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match=r"batch_size=16: must be a multiple of accumulation=3"):
        make_update(accumulation=3)


def test_no_two_draws_of_an_update_are_alike():
    drawn = []
    for seed in (0, 1):
        update = make_update(seed, accumulation=2, batch_size=8)
        for number in (0, 1):
            for what in DRAWS:
                update.draw_for(number, what)
                drawn.append(tuple(update.noise(3).tolist()))
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 4


def test_the_one_step_policy_s_loss_is_a_mean_over_micro_batches(monkeypatch):
    update = make_update(improvement="distill", accumulation=4, batch_size=16, actor_weight=1.0)
    parameter = next(update.networks.actor.one_step.parameters())
    monkeypatch.setattr(update, "distill_loss", lambda part: 2.0 + 0.0 * parameter.square().sum())
    assert update.run(1)["one_step_loss"] == pytest.approx(2.0)
