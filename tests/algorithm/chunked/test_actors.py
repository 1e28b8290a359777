"""The Gaussian chunk actor, and the two ways of climbing Q by the actor's own loss."""

from __future__ import annotations

import pytest
import torch
from chunked_fixtures import A, H, make_update, state
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from pld_ray.algorithm.chunked.actor import GaussianActor
from pld_ray.algorithm.chunked.micro_batches import MicroBatch
from pld_ray.algorithm.ensemble import reduce_ensemble

B, D = 5, 4
GAUSSIAN = {"actor": "gaussian", "improvement": "sac"}


@pytest.fixture
def actor():
    torch.manual_seed(0)
    return GaussianActor(D, H, A, [16, 16])


def reference(actor, observation):
    mean, log_std = actor(observation)
    return TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())


def test_the_log_probability_is_the_tanh_gaussian_s(actor):
    observation, noise = torch.randn(B, D), torch.randn(B, H, A)
    chunks, log_prob = actor.draw(observation, noise)
    expected = Independent(reference(actor, observation), 2).log_prob(chunks)
    torch.testing.assert_close(log_prob, expected, atol=1e-4, rtol=1e-4)
    many = actor.sample(observation, torch.randn(7, B, H, A))
    assert many.shape == (7, B, H, A)
    assert many.abs().max() <= 1


def test_cloning_is_the_negative_log_likelihood_of_valid_steps(actor):
    """QC's ACRLPD agent: -log pi(clip(a, -1 + 1e-5, 1 - 1e-5)); ours is a mean over a step."""
    observation = torch.randn(B, D)
    chunks = torch.rand(B, H, A) * 2 - 1
    chunks[0, 0] = 1.0
    weights = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1]])
    loss = actor.bc_loss(observation, chunks, weights, chunks, weights[:, 0])
    clipped = chunks.clamp(1e-5 - 1, 1 - 1e-5)
    error = -reference(actor, observation).log_prob(clipped).mean(-1)
    expected = (error * weights).sum() / weights.sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    ours = torch.autograd.grad(loss, list(actor.parameters()), retain_graph=True)
    theirs = torch.autograd.grad(expected, list(actor.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_sac_climbs_q_with_its_entropy_and_the_temperature_follows():
    update = make_update(**GAUSSIAN, temperature=0.5, target_entropy=100.0, bc_weight=1e-9)
    networks = update.networks
    batch = update.sample()
    x = networks.seen(batch).vector
    kept = update.generator.get_state()
    loss, log_prob = update.climb(MicroBatch({}, observation=x, x=x))
    update.generator.set_state(kept)
    chunks, expected = networks.actor.draw(x, update.noise(16, H, A))
    q = torch.stack(
        [
            networks.critic(x[row : row + 1], None, chunks[row].reshape(1, -1)).mean()
            for row in range(16)
        ]
    )
    torch.testing.assert_close(log_prob, expected)
    assert loss.item() == pytest.approx((0.5 * expected - q).mean().item(), abs=1e-5)
    before = state(networks.critic)
    means = update.run(3)
    assert means["temperature"] > 0.5  # the entropy is below its target
    assert {"gaussian_loss", "entropy", "q_policy", "temperature_loss"} <= means.keys()
    update.update_actor([MicroBatch(update.sample(), observation=x, x=x)])
    assert before.keys() == state(networks.critic).keys()


@pytest.mark.parametrize("options", [GAUSSIAN, {"improvement": "bptt"}])
def test_the_actor_s_loss_trains_the_actor_alone(options):
    update = make_update(**options)
    networks = update.networks
    batch = update.sample()
    x = networks.seen(batch).vector
    critic, actor = state(networks.critic), state(networks.actor)
    update.update_actor([MicroBatch(batch, observation=x, x=x)])
    assert all(torch.equal(v, critic[k]) for k, v in networks.critic.state_dict().items())
    assert any(not torch.equal(v, actor[k]) for k, v in networks.actor.state_dict().items())


def test_bptt_climbs_the_best_of_four_through_the_flow_s_steps():
    update = make_update(improvement="bptt")
    networks = update.networks
    x = networks.seen(update.sample()).vector
    kept = update.generator.get_state()
    loss, log_prob = update.climb(MicroBatch({}, observation=x, x=x))
    assert log_prob is None
    update.generator.set_state(kept)
    chunks = networks.actor.sample(x, update.noise(4, 16, H, A))
    best = [
        max(networks.critic(x[r : r + 1], None, c[r].reshape(1, -1)).mean().item() for c in chunks)
        for r in range(16)
    ]
    assert loss.item() == pytest.approx(-sum(best) / 16, abs=1e-5)
    gradient = torch.autograd.grad(loss, list(networks.actor.parameters()))
    assert any(g.any() for g in gradient)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"improvement": "sac"}, "improvement='sac': must be best_of_n or distill or bptt with"),
        ({"actor": "gaussian", "improvement": "distill"}, "must be best_of_n or sac with actor=g"),
        ({"temperature": 0.1}, "temperature=0.1: must be 0: a flow has no tractable"),
        ({"actor": "gaussian", "temperature": 0.1}, "must be 0 with improvement=best_of_n"),
        ({"actor": "lerobot"}, "actor_path=None: must be the folder of a policy"),
        ({"actor_path": "x"}, "actor_path='x': must be the folder of a policy with actor=lerobot"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_update(**options)


@pytest.mark.parametrize("reduction", ["min", "weighted"])
@pytest.mark.parametrize("options", [{"improvement": "bptt"}, GAUSSIAN])
def test_what_is_climbed_is_reduced_as_the_actor_s_option_says(options, reduction):
    update = make_update(**options, actor_reduction=reduction, target_reduction="mean")
    networks = update.networks
    logits = networks.critic.reduction_logits
    if logits is not None:
        logits.data.copy_(torch.tensor([2.0, -1.0, 0.5]))
    x = networks.seen(update.sample()).vector
    kept = update.generator.get_state()
    loss, _ = update.climb(MicroBatch({}, observation=x, x=x))
    update.generator.set_state(kept)
    noise = update.noise(4, 16, H, A) if "actor" not in options else update.noise(1, 16, H, A)
    q = reduce_ensemble(networks.judge(x, networks.actor.sample(x, noise)), reduction, logits)
    assert loss.item() == pytest.approx(-q.amax(0).mean().item(), abs=1e-5)
