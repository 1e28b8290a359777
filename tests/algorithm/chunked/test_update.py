"""One update: who gets which gradient, in which order, and what it draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chunked_fixtures import A, D, H, episodes, make_update, state

from pld_ray.algorithm.categorical import gaussian
from pld_ray.algorithm.chunked import losses, objective
from pld_ray.algorithm.chunked.micro_batches import MicroBatch
from pld_ray.algorithm.ensemble import reduce_ensemble
from pld_ray.algorithm.nonfinite import LossChecks, NonFiniteLossError


def changed(before, module):
    return any(not torch.equal(v, module.state_dict()[k]) for k, v in before.items())


@pytest.mark.parametrize("improvement", ["best_of_n", "distill"])
@pytest.mark.parametrize("atoms", [1, 11])
def test_losses_do_not_cross(improvement, atoms):
    update = make_update(improvement=improvement, critic_atoms=atoms)
    networks = update.networks
    micro_batch = MicroBatch(update.sample())
    update.observe(micro_batch)
    parts = {"critic": networks.critic, "flow": networks.actor}
    if improvement == "distill":
        parts |= {"flow": networks.actor.flow, "one_step": networks.actor.one_step}
    steps = {
        "critic": lambda: update.update_critic([micro_batch]),
        "flow": lambda: update.update_actor([micro_batch]),
        "one_step": lambda: update.update_one_step([micro_batch]),
    }
    for name in parts:
        before = {other: state(module) for other, module in parts.items()}
        steps[name]()
        for other, module in parts.items():
            assert changed(before[other], module) == (other == name), (name, other)
    assert not any(p.requires_grad for p in networks.target_critic.parameters())
    assert not any(p.requires_grad for p in networks.ema_actor.parameters())


def test_target_and_average_follow_after_the_losses():
    update = make_update(tau=0.25, ema_decay=0.8)
    networks = update.networks
    target, average = state(networks.target_critic), state(networks.ema_actor)
    update.run(1)
    for name, value in networks.critic.state_dict().items():
        expected = 0.75 * target[name] + 0.25 * value
        torch.testing.assert_close(networks.target_critic.state_dict()[name], expected)
    for name, value in networks.actor.state_dict().items():
        expected = 0.8 * average[name] + 0.2 * value
        torch.testing.assert_close(networks.ema_actor.state_dict()[name], expected)


def test_the_target_is_the_formula_s():
    """a' is the online critics' choice among N', the target critics judge it."""
    update = make_update(target_candidates=5, num_subsample_critics=3, target_reduction="min")
    networks = update.networks
    with torch.no_grad():  # critics that disagree
        for p in networks.target_critic.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=update.generator))
    batch = update.sample()
    kept = update.generator.get_state()
    y, distribution = update.td_target(batch)
    assert distribution is None

    update.generator.set_state(kept)
    noise = update.noise(5, 16, H, A)
    x = networks.normalizer(batch["next_observation"])
    candidates = losses.integrate(
        lambda c, tau: networks.actor.velocity(networks.actor.velocity.context(x), c, tau), noise, 3
    )
    for row in range(16):
        scores = [
            networks.critic(x[row : row + 1], None, c[row].reshape(1, -1)).mean().item()
            for c in candidates
        ]
        best = candidates[int(np.argmax(scores)), row].reshape(1, -1)
        q = networks.target_critic(x[row : row + 1], None, best).min().item()
        expected = float(batch["reward"][row] + batch["discount"][row] * q)
        assert y[row].item() == pytest.approx(expected, abs=1e-5)
    gamma = update.params.gamma
    m, mask = batch["window"], batch["mask"]
    torch.testing.assert_close(batch["discount"], gamma ** m.float() * mask)


@pytest.mark.parametrize("smoothing", [0.0, 0.75])
def test_a_categorical_target_has_the_scalar_one_s_mean(smoothing):
    options = {"critic_atoms": 201, "critic_smoothing": smoothing}
    update = make_update(**options, num_subsample_critics=3, target_reduction="mean")
    batch = update.sample()
    kept = update.generator.get_state()
    y, distribution = update.td_target(batch)
    update.generator.set_state(kept)
    networks = update.networks
    x = networks.seen(batch, successor=True).vector
    chunk = networks.choose(x, networks.actor.sample(x, update.noise(2, 16, H, A)))
    q = networks.target_critic.value(networks.outputs(networks.target_critic, x, chunk))
    expected = losses.td_target(batch["reward"], batch["discount"], q, "mean")
    atoms = networks.target_critic.atoms
    if smoothing:
        assert torch.allclose(distribution, gaussian(expected, smoothing, atoms), atol=1e-4)
        expected = distribution @ atoms
    torch.testing.assert_close(y, expected.clamp(0, 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(distribution.sum(-1), torch.ones(16))


def test_actions_are_in_the_range_of_the_data_and_what_never_moves_stays():
    networks = make_update(fill=False).networks
    data = torch.tensor([[0.25, -1.0], [0.25, 3.0], [0.25, 0.0]])
    networks.fit_actions(data)
    expected = torch.tensor([[0.0, -1.0], [0.0, 1.0], [0.0, -0.5]])
    assert torch.equal(networks.to_unit(data), expected)
    assert torch.equal(networks.from_unit(expected), data)
    noise = torch.randn(4, 5, H, A, generator=torch.Generator().manual_seed(0))
    observation = {"observation.state": torch.zeros(5, D)}
    chunks = networks.act(observation, noise)
    assert (chunks[..., 0] == 0.25).all()  # exactly: the smallest drift would add up
    assert (chunks[..., 1] - 1.0).abs().max() <= 2.0
    assert len(chunks[..., 1].unique()) > 1
    beyond = networks.to_unit(torch.tensor([[0.0, 4.0]]))  # a person's, outside the range
    assert torch.equal(beyond, torch.tensor([[0.0, 1.0]]))


def test_windows_are_cut_cloned_and_scaled_as_asked():
    update = make_update()
    batch = update.sample()
    short = ~batch["valid"][:, -1]
    assert short.any()
    assert not batch["actions"][~batch["valid"]].any()
    assert batch["actions"].abs().max() <= 1 + 1e-6
    low, high = update.networks.action_low, update.networks.action_high
    back = update.networks.from_unit(batch["actions"])[:, 0]
    assert ((back >= low - 1e-5) & (back <= high + 1e-5)).all()
    torch.testing.assert_close(back, batch["action"], atol=1e-5, rtol=0)
    weights = update.cloning_weights(batch)
    assert not weights[~batch["positive"]].any()
    assert torch.equal(weights[batch["positive"]], batch["valid"][batch["positive"]].float())
    assert update.window_weights(batch).all()

    every = make_update(bc_episodes="all", tail="drop")
    batch = every.sample()
    assert batch["valid"].all()
    assert every.cloning_weights(batch).all()
    assert (~batch["positive"]).any()


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_half_of_the_windows_are_of_either_ring(tail):
    update = make_update(tail=tail)
    offline = update.replay.offline.observations()

    def of_offline():
        return [(row == offline).all(1).any().item() for row in update.sample()["observation"]]

    half, all_offline = [True] * 8 + [False] * 8, [True] * 16
    assert of_offline() == half
    update.replay.online.clear()
    assert of_offline() == all_offline
    update.replay.online.add_episodes(*episodes(1, (2,), (False,)), gamma=0.9)  # shorter than H
    assert of_offline() == (half if tail == "pad" else all_offline)
    for ring in (update.replay.offline, update.replay.online):
        ring.clear()
    with pytest.raises(ValueError, match="no episode has been stored"):
        update.sample()


def test_two_updates_of_one_seed_are_alike_and_go_on_alike():
    one, other = make_update(critic_dropout=0.1), make_update(critic_dropout=0.1)
    assert one.run(3) == other.run(3)
    other.run(2)
    third = make_update(seed=9, critic_dropout=0.1)
    third.networks.load_state_dict(one.networks.state_dict())
    third.load_state_dict(one.state_dict())
    for name, optimizer in one.optimizers.items():
        third.optimizers[name].load_state_dict(optimizer.state_dict())
    for name in ("offline", "online"):
        generator = getattr(one.replay, name).generator.get_state()
        getattr(third.replay, name).generator.set_state(generator)
    third.run(2)
    for name, value in other.networks.state_dict().items():
        assert torch.equal(value, third.networks.state_dict()[name]), name


def test_a_loss_that_is_not_finite_names_itself():
    update = make_update()
    with torch.no_grad():
        next(update.networks.actor.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match="critic_loss is not finite at update 0"):
        update.run(1)


def test_acting_takes_the_average_and_the_best_candidate():
    update = make_update()
    update.run(5)
    networks = update.networks
    observation = {"observation.state": torch.randn(1, D)}
    noise = torch.randn(8, 1, H, A)
    chunk = networks.act(observation, noise)
    x = networks.normalizer(observation["observation.state"])
    candidates = networks.ema_actor.sample(x, noise)
    scores = networks.judge(x, candidates).mean(0)[:, 0]
    expected = networks.from_unit(candidates[scores.argmax(), 0])
    torch.testing.assert_close(chunk[0], expected)
    networks.keep_what_acts()
    torch.testing.assert_close(networks.act(observation, noise), chunk)


def test_learned_weights_are_those_of_the_drawn_members(monkeypatch):
    update = make_update(num_critics=4, num_subsample_critics=2, target_reduction="weighted")
    logits = update.networks.target_critic.reduction_logits
    with torch.no_grad():
        logits.copy_(torch.tensor([2.0, -1.0, 0.5, -3.0]))
    seen = []
    monkeypatch.setattr(objective, "draw_members", lambda *_: torch.tensor([3, 1]))
    monkeypatch.setattr(losses, "td_target", lambda *a: seen.append(a[-1]) or a[0])
    update.td_target(update.sample())
    assert seen[0].tolist() == [-3.0, -1.0]


def test_the_entropy_of_a_chunk_is_half_a_nat_a_value_below_0():
    update = make_update(actor="gaussian", improvement="sac", temperature=0.5)
    log_prob = torch.tensor([1.0, 4.0])
    loss = update.temperature_loss(MicroBatch({}), log_prob)
    log_alpha = update.networks.log_alpha.detach()
    torch.testing.assert_close(loss.detach(), -log_alpha.squeeze() * (2.5 - 0.5 * H * A))


@pytest.mark.parametrize(("loss", "option"), [("one_step", "actor"), ("critic", "critic")])
def test_a_loss_has_its_weight(loss, option):
    one, three = (
        make_update(improvement="distill", **{f"{option}_weight": weight}).run(1)[f"{loss}_loss"]
        for weight in (1.0, 3.0)
    )
    assert three == pytest.approx(3 * one, rel=1e-5)


def test_a_finite_loss_whose_gradient_is_not_stops_before_the_step():
    checks = LossChecks(torch.device("cpu"))
    with pytest.raises(NonFiniteLossError, match="critic_grad_norm is not finite at update 3"):
        checks.add("critic", torch.tensor(1.0), torch.tensor(torch.inf), {}, 3)


def test_members_weights_learn_from_each_micro_batch_by_its_share():
    update = make_update(target_reduction="weighted")
    logits = update.networks.critic.reduction_logits
    part = MicroBatch(update.sample())
    update.observe(part)
    weights = update.window_weights(part.batch)
    kept = update.generator.get_state()
    found = []
    for part.share in (1.0, 0.25):
        update.generator.set_state(kept)
        loss = update.critic_loss(part, weights, weights.sum())
        found += torch.autograd.grad(loss, logits)
    assert found[0].any()
    torch.testing.assert_close(found[1], found[0] / 4)


@pytest.mark.parametrize("reduction", ["min", "weighted"])
def test_the_one_step_policy_is_judged_by_what_would_be_executed(reduction):
    """Its chunks are clipped for the critics, and not for the distance to the flow."""
    update = make_update(improvement="distill", distill_alpha=2.0, actor_reduction=reduction)
    networks = update.networks
    logits = networks.critic.reduction_logits
    if logits is not None:
        logits.data.copy_(torch.tensor([2.0, -1.0, 0.5]))
    last = list(networks.actor.one_step.trunk.values())[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, 3.0)
    part = MicroBatch(update.sample())
    update.observe(part)
    kept = update.generator.get_state()
    loss = update.distill_loss(part)
    update.generator.set_state(kept)
    flow_chunks = networks.actor.flow.sample(part.observation, update.noise(16, H, A))
    q = networks.outputs(networks.critic, part.x, torch.ones(16, H, A))
    q = reduce_ensemble(q, reduction, logits)
    expected = 2.0 * (3.0 - flow_chunks).square().mean() - q.mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_updates_are_counted():
    update = make_update()
    update.run(3)
    assert update.updates == update.state_dict()["updates"] == 3


@pytest.mark.parametrize(("tail", "weights"), [("drop", [0.0, 1.0]), ("pad", [1.0, 1.0])])
def test_a_window_that_is_cut_off_trains_the_critics_where_tails_are_kept(tail, weights):
    update = make_update(tail=tail)
    batch = {"valid": torch.tensor([[True, True, False], [True, True, True]])}
    assert update.window_weights(batch).tolist() == weights
