"""The update against a loop written from the equations, its randomness, state and failures."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from update_fixtures import ACT, BATCH, make_params, make_update, same_weights, weights

from pld_ray.algorithm import ensemble
from pld_ray.algorithm.residual import losses
from pld_ray.algorithm.residual.update import NonFiniteLossError

# --- one whole update, written again from the equations ------------------------------------------


def reference_update(update, batch):
    """Formulas 7-19 with plain autograd, separate critics and Adam, on copies of the networks."""
    params, networks = update.params, copy.deepcopy(update.networks)
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    adam = {
        "critic": torch.optim.Adam(networks.critic.parameters(), params.critic_lr),
        "actor": torch.optim.Adam(networks.actor.parameters(), params.actor_lr),
        "temperature": torch.optim.Adam([networks.log_alpha], params.temperature_lr),
    }
    beta, dims = params.residual_scale, torch.tensor(params.residual_dims)
    active = [d for d in range(ACT) if dims[d] > 0]
    mean, std = networks.normalizer.mean, networks.normalizer.std

    def standardise(observation):
        return ((observation - mean) / std).clamp(-10, 10)

    def critic(ensemble, member, x, base, action):
        hidden = torch.cat([x, base, action], -1)
        for number, layer in enumerate(ensemble.layers):
            hidden = hidden @ layer.weight[member] + layer.bias[member, 0]
            if number < len(ensemble.layers) - 1:
                hidden = F.relu(F.layer_norm(hidden, hidden.shape[-1:]))
        return hidden[:, 0]

    acting = networks.ema_actor or networks.actor

    def residual(x, base, noise, actor=networks.actor):
        mu, log_std = actor(x, base)
        u = mu + log_std.exp() * noise
        normal = torch.distributions.Normal(mu, log_std.exp())
        log_prob = normal.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
        return torch.tanh(u), log_prob[:, active].sum(-1)

    def compose(base, delta):
        return (base + beta * dims * delta).clamp(-1, 1)

    x, next_x = standardise(batch["observation"]), standardise(batch["next_observation"])
    base, next_base = batch["base_action"], batch["next_base_action"]
    alpha = networks.log_alpha.exp().item()
    noise = torch.randn(params.otf_candidates, BATCH, ACT, generator=generator)
    with torch.no_grad():
        candidates = []
        for k in range(params.otf_candidates):
            delta, log_prob = residual(next_x, next_base, noise[k], acting)
            action = compose(next_base, delta)
            q = [
                critic(networks.target_critic, i, next_x, next_base, action)
                for i in range(params.num_critics)
            ]
            value = torch.minimum(*q)
            if params.backup_entropy:
                value = value - alpha * log_prob
            candidates.append(value)
        best = torch.stack(candidates).max(0).values
        y = batch["reward"] + batch["discount"] * best

    loss = sum(
        F.mse_loss(critic(networks.critic, i, x, base, batch["action"]), y)
        for i in range(params.num_critics)
    )
    if params.conservative_weight:  # rows 0, 4, 8, ... of the batch
        rows = torch.arange(0, BATCH, 4)
        noise = torch.randn(1, len(rows), ACT, generator=generator)[0]
        action = compose(base[rows], residual(x[rows], base[rows], noise)[0].detach())
        gaps = [
            critic(networks.critic, i, x[rows], base[rows], action)
            - critic(networks.critic, i, x[rows], base[rows], batch["action"][rows])
            for i in range(params.num_critics)
        ]
        loss = loss + params.conservative_weight * sum(gap.mean() for gap in gaps)
    adam["critic"].zero_grad()
    loss.backward()
    adam["critic"].step()
    figures = {"critic_loss": loss.item(), "td_target_mean": y.mean().item()}

    noise = torch.randn(1, BATCH, ACT, generator=generator)[0]
    delta, log_prob = residual(x, base, noise)
    near = judged = delta
    if params.proximal_penalty:
        near = residual(x, base, noise, acting)[0].detach()
        reach = params.proximal_range
        judged = torch.minimum(torch.maximum(delta, near - reach), near + reach)
    q = [
        critic(networks.critic, i, x, base, compose(base, judged))
        for i in range(params.num_critics)
    ]
    q = torch.minimum(*q) if params.actor_reduction == "min" else (q[0] + q[1]) / 2
    penalty = params.residual_penalty * (delta[:, active] ** 2).sum(-1)
    loss = (alpha * log_prob - q + penalty).mean()
    executed = (batch["action"] - base)[:, active] / (beta * networks.residual_dims[active])
    error = (delta[:, active] - executed.clamp(-1, 1)).square().sum(-1)
    apart = (delta - near)[:, active].square().sum(-1)
    loss = loss + params.proximal_penalty * apart.mean()
    loss = loss + params.success_imitation * torch.where(batch["succeeded"], error, 0.0).mean()
    adam["actor"].zero_grad()
    loss.backward()
    adam["actor"].step()
    figures["actor_loss"] = loss.item()
    figures["entropy"] = -log_prob.mean().item()

    entropy_target = -0.5 * len(active)
    loss = -networks.log_alpha[0] * (log_prob.mean().item() + entropy_target)
    adam["temperature"].zero_grad()
    loss.backward()
    adam["temperature"].step()
    figures["temperature_loss"] = loss.item()

    with torch.no_grad():
        if params.ema_decay:
            averaged = zip(
                networks.ema_actor.parameters(), networks.actor.parameters(), strict=True
            )
            for average, online in averaged:
                average.lerp_(online, 1 - params.ema_decay)
        for target, online in zip(
            networks.target_critic.parameters(), networks.critic.parameters(), strict=True
        ):
            target.copy_((1 - params.tau) * target + params.tau * online)
    return networks, figures


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backup_entropy": True, "otf_candidates": 4, "actor_reduction": "min"},
        {"residual_penalty": 0.3, "n_step": 1, "otf_candidates": 8},
        {"success_imitation": 0.4},
        {"ema_decay": 0.75, "backup_entropy": True},
        {"ema_decay": 0.75, "proximal_penalty": 0.4, "proximal_range": 0.02},
        {"ema_decay": 0.75, "conservative_weight": 0.3, "conservative_updates": 5},
    ],
    ids=[
        "defaults",
        "otf with entropy",
        "penalty",
        "imitation",
        "average",
        "proximal",
        "conservative",
    ],
)
def test_one_update_equals_the_equations(options):
    update = make_update(make_params(**options))
    params = update.params
    if update.networks.ema_actor:  # elsewhere than the actor
        with torch.no_grad():
            update.networks.ema_actor.head.weight.mul_(-1.0)
    batch = copy.deepcopy(update.replay).sample(BATCH, params.n_step, params.gamma)
    networks, expected = reference_update(update, batch)
    figures = update.run(1)
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
    ours = update.networks.state_dict()
    for name, value in networks.state_dict().items():
        # Adam's first step is lr * sign(gradient): any wrong gradient moves a weight by 1e-3
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=2e-5, msg=name)


def test_target_moves_by_tau():
    update = make_update(make_params(tau=0.25))
    before = [p.clone() for p in update.networks.target_critic.parameters()]
    update.run(1)
    pairs = zip(
        before,
        update.networks.target_critic.parameters(),
        update.networks.critic.parameters(),
        strict=True,
    )
    for old, new, online in pairs:
        torch.testing.assert_close(new, 0.75 * old + 0.25 * online)


def test_the_average_follows_every_actor_step_and_acts_in_its_place():
    plain = make_update(make_params(actor_delay_updates=1))
    update = make_update(make_params(actor_delay_updates=1, ema_decay=0.75))
    update.networks.ema_actor.load_state_dict(update.networks.actor.state_dict())
    average = [p.clone() for p in update.networks.ema_actor.parameters()]
    for number in (1, 2, 3):  # the first makes no actor step
        update.run(1)
        plain.run(1)
        actor = list(update.networks.actor.parameters())
        moved = 0.0 if number == 1 else 0.25
        average = [(1 - moved) * old + moved * new for old, new in zip(average, actor, strict=True)]
        trained = [n.networks.actor.state_dict() for n in (update, plain)]
        assert same_weights(*trained) == (number < 3), "until critics judge another actor"
    torch.testing.assert_close(list(update.networks.ema_actor.parameters()), average)

    batch = update.replay.sample(BATCH, 1, 0.9)
    observation = {"observation.state": batch["observation"], "base_action": batch["base_action"]}
    played, _ = update.networks.act(observation)
    update.networks.keep_what_acts()
    assert update.networks.actor is None
    torch.testing.assert_close(update.networks.act(observation)[0], played)
    assert not torch.equal(plain.networks.act(observation)[0], played)


def test_two_of_five_bootstraps_from_the_minimum_of_the_two_drawn():
    params = make_params(num_critics=5, num_subsample_critics=2, backup_entropy=True)
    update = make_update(params)
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    batch = copy.deepcopy(update.replay).sample(BATCH, params.n_step, params.gamma)
    networks = update.networks
    with torch.no_grad():
        x, base = networks.normalizer(batch["next_observation"]), batch["next_base_action"]
        noise = torch.randn(1, BATCH, ACT, generator=generator)
        delta, log_prob = losses.sample_residual(
            *networks.actor(x, base), noise, networks.residual_dims
        )
        action = losses.compose_action(base, delta[0], 0.6, networks.residual_dims)
        drawn = ensemble.draw_members(5, 2, generator).tolist()
        q = networks.target_critic(x, base, action)
        value = torch.minimum(q[drawn[0]], q[drawn[1]]) - networks.log_alpha.exp() * log_prob[0]
        target = batch["reward"] + batch["discount"] * value
    assert update.run(1)["td_target_mean"] == pytest.approx(target.mean().item(), rel=1e-5)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 1), (5, 2)])
@pytest.mark.parametrize("layer_norm", [True, False])
def test_ensembles_of_any_size_fit_the_reward(n, m, layer_norm):
    params = make_params(
        num_critics=n,
        num_subsample_critics=m,
        critic_layer_norm=layer_norm,
        critic_lr=5e-3,
        gamma=1e-6,
    )
    update = make_update(params)
    before = update.run(5)["critic_loss"]
    update.run(300)
    assert update.run(20)["critic_loss"] < 0.1 * before


def test_actor_and_temperature_wait_for_their_turn():
    update = make_update(make_params(critic_actor_update_ratio=3))
    before = weights(update)
    assert "actor_loss" not in update.run(2)
    after = weights(update)
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("actor"))
    assert torch.equal(before["log_alpha"], after["log_alpha"])
    assert "actor_loss" in update.run(1)
    third = weights(update)
    assert any(not torch.equal(after[k], third[k]) for k in after if k.startswith("actor"))
    assert not torch.equal(after["log_alpha"], third["log_alpha"])


def test_the_actor_step_leaves_no_gradient_on_the_critics():
    update = make_update()
    update.run(1)
    gradients = [p.grad.clone() for p in update.trained["critic"]]
    batch = update.replay.sample(BATCH, 2, 0.98)
    update.update_actor(batch, update.networks.normalizer(batch["observation"]))
    for parameter, gradient in zip(update.trained["critic"], gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_log_alpha_stops_at_its_floor():
    floor = math.log(0.1) - 0.01
    update = make_update(
        make_params(log_alpha_min=floor, temperature_lr=0.1, target_entropy=-100.0)
    )
    update.run(5)
    assert update.networks.log_alpha.item() == pytest.approx(floor)


def test_beta_in_force_is_used():
    updates = [make_update(), make_update()]
    updates[1].networks.residual_scale.fill_(0.0)
    first, second = (u.run(1) for u in updates)
    assert first["td_target_mean"] != second["td_target_mean"]
    # at beta = 0 every candidate is the base action: K does not matter
    third = make_update(make_params(otf_candidates=8))
    third.networks.residual_scale.fill_(0.0)
    assert third.run(1)["td_target_mean"] == pytest.approx(second["td_target_mean"], rel=1e-6)


def test_gradient_clipping_limits_what_the_optimizer_sees():
    update = make_update(make_params(grad_clip_norm=1e-3))
    figures = update.run(1)
    for name in ("critic", "actor"):
        assert figures[f"{name}_grad_norm"] > 1e-3
        norms = torch.stack([p.grad.norm() for p in update.trained[name]])
        assert norms.norm().item() == pytest.approx(1e-3, rel=1e-2)


# --- figures -------------------------------------------------------------------------------------


def test_q_out_of_bound_counts_both_sides():
    inside = make_update(make_params(value_range=[-100.0, 100.0])).run(3)
    assert inside["q_out_of_bound"] == 0.0
    above = make_update(make_params(value_range=[-200.0, -100.0])).run(3)
    below = make_update(make_params(value_range=[100.0, 200.0])).run(3)
    assert above["q_out_of_bound"] == below["q_out_of_bound"] == 1.0
    middle = make_update(make_params(value_range=[inside["q_mean"], 100.0])).run(3)
    assert 0.0 < middle["q_out_of_bound"] < 1.0


def test_figures_are_means_over_the_call():
    whole, parts = make_update(), make_update()
    figures = whole.run(300)
    halves = [parts.run(150), parts.run(150)]
    for name, value in figures.items():
        mean = (halves[0][name] + halves[1][name]) / 2
        assert value == pytest.approx(mean, rel=1e-4, abs=1e-5), name
    assert make_update().run(0) == {}


# --- randomness and state ------------------------------------------------------------------------


def test_same_seed_same_numbers_and_the_global_generator_is_left_alone():
    one, other = make_update(seed=3), make_update(seed=3)
    before = torch.get_rng_state()
    assert one.run(20) == other.run(20)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(weights(one), weights(other))
    different = make_update(seed=4)
    different.run(20)
    assert not same_weights(weights(one), weights(different))


def test_restored_state_makes_the_same_next_updates_bit_for_bit(tmp_path):
    params = make_params(
        num_critics=4, num_subsample_critics=2, otf_candidates=3, critic_actor_update_ratio=2
    )
    first = make_update(params, seed=3)
    first.run(7)
    optimizer_states = {k: copy.deepcopy(o.state_dict()) for k, o in first.optimizers.items()}
    first.replay.offline.save(tmp_path / "offline")
    first.replay.online.save(tmp_path / "online")

    second = make_update(params, seed=99)
    second.run(2)
    second.networks.load_state_dict(weights(first))
    for name, state in optimizer_states.items():
        second.optimizers[name].load_state_dict(state)
    second.replay.offline.load(tmp_path / "offline")
    second.replay.online.load(tmp_path / "online")
    second.load_state_dict(first.state_dict())

    assert second.updates == 7
    assert first.run(6) == second.run(6)
    assert same_weights(weights(first), weights(second))


def test_a_state_of_another_kind_of_device_gives_one_stream_of_its_own():
    state = make_update().state_dict()
    drawn = []
    for stream in (0, 1, 0):
        update = make_update(seed=len(drawn))
        update.load_state_dict({**state, "generator": np.full(16, stream, np.uint8)})  # a GPU's
        drawn.append(update.noise(8))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


# --- failures ------------------------------------------------------------------------------------


def poison(update, column, value):
    ring = update.replay.online
    ring.schema.view(ring._rows, column)[ring.start_rows()] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_reward_stops_before_the_step_and_names_loss_and_column(value):
    update = make_update()
    update.run(3)
    before = weights(update)
    poison(update, "reward", value)
    with pytest.raises(
        NonFiniteLossError, match=r"critic_loss is not finite at update 3.*reward"
    ) as e:
        update.run(10)
    assert (e.value.name, e.value.step) == ("critic_loss", 3)
    assert not e.value.batch["reward"].isfinite().all()
    assert same_weights(before, weights(update))


def test_a_bad_actor_loss_is_named_and_the_actor_unchanged():
    update = make_update(make_params(residual_penalty=float("inf")))
    before = weights(update)
    with pytest.raises(NonFiniteLossError, match=r"actor_loss.*the batch itself is finite") as e:
        update.run(1)
    assert e.value.name == "actor_loss"
    after = weights(update)
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("actor"))


def test_checks_made_together_name_the_first_bad_loss_before_run_returns():
    update = make_update(checks_at_once=1000)
    update.run(3)
    poison(update, "reward", float("nan"))
    with pytest.raises(NonFiniteLossError) as e:
        update.run(10)
    assert (e.value.name, e.value.step) == ("critic_loss", 3)
    assert not e.value.batch["reward"].isfinite().all()


def test_a_scaled_entropy_target_follows_beta():
    update = make_update(make_params(scale_entropy_target=True))
    for beta in (0.6, 0.9):
        update.networks.residual_scale.fill_(beta)
        update.run(1)
        expected = -1.0 - math.log(beta) - math.log(beta * 0.5)
        assert update.target_entropy.item() == pytest.approx(expected, rel=1e-5)


def test_the_actor_waits_for_its_delay_and_the_critic_does_not():
    update = make_update(make_params(actor_delay_updates=3, critic_actor_update_ratio=1))
    before = {k: v.clone() for k, v in update.networks.actor.state_dict().items()}
    critic = [p.clone() for p in update.networks.critic.parameters()]
    figures = update.run(3)
    assert "actor_loss" not in figures
    for key, value in update.networks.actor.state_dict().items():
        assert torch.equal(value, before[key])
    assert not torch.equal(critic[0], next(iter(update.networks.critic.parameters())))
    assert "actor_loss" in update.run(1)


def test_what_nobody_tried_is_not_believed_once_the_actor_moves():
    options = {"actor_delay_updates": 2, "critic_lr": 5e-3, "conservative_updates": 0}
    plain, update = (
        make_update(make_params(conservative_weight=weight, **options)) for weight in (0.0, 1.0)
    )
    for it in (plain, update):
        with torch.no_grad():  # far from the actions of the replay
            it.networks.actor.head.bias[:ACT] = 2.0
    assert "conservative_gap" not in update.run(2)
    plain.run(2)
    assert same_weights(*(it.networks.critic.state_dict() for it in (plain, update)))
    assert update.run(60)["conservative_gap"] < 0.0
    assert "conservative_gap" not in plain.run(60)
    batch = update.replay.sample(BATCH, 1, 0.9)
    asked = []
    for it in (plain, update):
        with torch.no_grad():
            x = it.networks.encode(it.networks.encoder, batch)
            delta, _ = it.residual(x, batch["base_action"], 1)
            far = it.compose(batch["base_action"], delta)[0]
            tried = it.networks.critic(x, batch["base_action"], batch["action"])
            asked.append((it.networks.critic(x, batch["base_action"], far) - tried).mean())
    assert asked[1] < asked[0] - 0.05


def test_what_is_not_believed_is_so_for_a_while():
    options = {"actor_delay_updates": 2, "conservative_weight": 0.4, "conservative_updates": 4}
    for remainder, end in ((0.0, [0.1, 0.0, 0.0]), (0.5, [0.2, 0.2, 0.2])):
        update = make_update(make_params(conservative_remainder=remainder, **options))
        weights = []
        for _ in range(8):
            weights.append(update.conservative_weight)
            assert ("conservative_gap" in update.run(1)) == (weights[-1] > 0)
        assert weights == pytest.approx([0.0, 0.0, 0.4, 0.3, 0.2, *end])
    update.params.conservative_updates = 0
    assert update.conservative_weight == 0.4


def test_the_rate_of_the_actor_rises_once_it_moves():
    """Adam's first step is as long as its rate, whatever the gradient."""
    params = make_params(
        actor_delay_updates=2, actor_lr_warmup_updates=4, critic_actor_update_ratio=1
    )
    update = make_update(params)
    before = [p.clone() for p in update.networks.actor.parameters()]
    critic_lr = update.optimizers["critic"].param_groups[0]["lr"]
    update.run(3)
    pairs = zip(update.networks.actor.parameters(), before, strict=True)
    moved = [float((p - b).abs().max()) for p, b in pairs]
    assert max(moved) == pytest.approx(params.actor_lr / 4, rel=1e-3)
    restored = make_update(params)
    restored.load_state_dict(update.state_dict())  # goes on where it was
    rates = []
    for _ in range(3):
        restored.run(1)
        rates.append(restored.optimizers["actor"].param_groups[0]["lr"] / params.actor_lr)
    assert rates == pytest.approx([2 / 4, 3 / 4, 1])
    restored.run(2)
    assert restored.optimizers["actor"].param_groups[0]["lr"] == params.actor_lr
    assert restored.optimizers["critic"].param_groups[0]["lr"] == critic_lr


def test_returns_are_long_while_the_actor_waits_and_short_after():
    """Where nothing terminates early a row's discount is gamma^n, which tells n."""
    params = make_params(n_step=2, actor_delay_n_step=7, actor_delay_updates=3)
    update, gamma, lengths = make_update(params), params.gamma, []
    step = update.step

    def watched(batch):
        discount = batch["discount"]
        lengths.append(round(math.log(float(discount[discount > 0].min()), gamma)))
        step(batch)

    update.step = watched
    update.run(5)
    assert lengths == [7, 7, 7, 2, 2]
    restored = make_update(params)
    restored.load_state_dict(update.state_dict())  # goes on where it was, not with another wait
    assert restored.return_steps == 2
    assert make_update(make_params(n_step=2, actor_delay_n_step=0)).return_steps == 2
