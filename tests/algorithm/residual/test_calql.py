"""The Cal-QL initialisation: one step from the equations, what it does to Q, its randomness."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from update_fixtures import ACT, BATCH, make_params, make_ring, make_update, same_weights, weights

from pld_ray.algorithm.residual.calql import CalQLInitialization, OfflineDataError


def make_calql(seed=0, **options):
    params = make_params(**({"calql_steps": 1, "n_step": 1, "calql_alpha": 0.7} | options))
    sac = make_update(params, seed=seed)
    return CalQLInitialization(sac, sac.replay.offline)


def reference_step(calql, batch):
    """(20) for each critic, each sampled action on its own; the critic after one Adam step."""
    sac, params = calql.sac, calql.params
    networks = copy.deepcopy(sac.networks)
    generator = torch.Generator()
    generator.set_state(sac.generator.get_state())
    beta, dims = params.residual_scale, torch.tensor(params.residual_dims)
    active = [d for d in range(ACT) if dims[d] > 0]
    adam = torch.optim.Adam(networks.critic.parameters(), params.critic_lr)
    x, next_x = (
        networks.normalizer(batch["observation"]),
        networks.normalizer(batch["next_observation"]),
    )
    base, next_base = batch["base_action"], batch["next_base_action"]

    def residual(x, base, count):
        mean, log_std = networks.actor(x, base)
        noise = torch.randn(count, *mean.shape, generator=generator)
        u = mean + log_std.exp() * noise
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
        log_prob = (log_prob - torch.log(1 - torch.tanh(u) ** 2))[..., active].sum(-1)
        return torch.tanh(u), log_prob

    def compose(base, delta):
        return (base + beta * dims * delta).clamp(-1, 1)

    with torch.no_grad():
        delta, log_prob = residual(next_x, next_base, 1)
        value = networks.target_critic(next_x, next_base, compose(next_base, delta[0])).amin(0)
        if params.calql_td_xi:
            value = value - params.calql_td_xi * networks.log_alpha.exp() * log_prob[0]
        y = batch["reward"] + batch["discount"] * value
        count = params.calql_num_actions
        uniform = torch.rand(count, BATCH, ACT, generator=generator) * 2 - 1
        now, log_prob_now = residual(x, base, count)
        after, log_prob_after = residual(next_x, next_base, count)

    loss = 0.0
    g = batch["mc_return"]
    for i in range(params.num_critics):

        def q(action, i=i):
            return networks.critic(x, base, action)[i]

        values = []
        for s in range(count):
            values.append(q(compose(base, uniform[s])) + len(active) * math.log(2))
            for delta, log_prob, origin in (
                (now, log_prob_now, base),
                (after, log_prob_after, next_base),
            ):
                value = q(compose(origin, delta[s]))
                if params.calql_calibrate:
                    value = torch.where(value < g, g, value)
                values.append(value - log_prob[s])
        t = params.calql_lse_beta
        spread = t * torch.logsumexp(torch.stack(values) / t, 0)
        data = q(batch["action"])
        loss = loss + F.mse_loss(data, y) + params.calql_alpha * (spread - data).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    return networks.critic, loss.item()


@pytest.mark.parametrize(
    "options",
    [{}, {"calql_calibrate": False}, {"calql_td_xi": 0.5, "calql_lse_beta": 2.0}],
    ids=["cal-ql", "cql", "td entropy"],
)
def test_one_step_equals_the_equation(options):
    calql = make_calql(**options)
    batch = copy.deepcopy(calql.offline).sample(BATCH, 1, calql.params.gamma)
    critic, loss = reference_step(calql, batch)
    figures = calql.run(1)
    assert figures["calql_loss"] == pytest.approx(loss, rel=1e-5)
    for ours, expected in zip(
        calql.sac.networks.critic.parameters(), critic.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)


def test_it_trains_the_critic_and_its_target_and_nothing_else():
    calql = make_calql()
    before = weights(calql.sac)
    calql.run(3)
    after = weights(calql.sac)
    changed = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
    assert changed == {"critic", "target_critic"}


def test_conservatism_lowers_unseen_actions_below_the_data():
    gaps = {}
    for alpha in (0.0, 1.0):
        calql = make_calql(calql_alpha=alpha, critic_lr=3e-3, calql_calibrate=False)
        calql.run(150)
        gaps[alpha] = calql.run(10)["calql_gap"]
    assert gaps[1.0] < gaps[0.0] - 0.5


def test_the_bound_holds_where_cql_sinks():
    floors = {}
    for calibrate in (True, False):
        calql = make_calql(calql_alpha=1.0, critic_lr=3e-3, calql_calibrate=calibrate)
        calql.run(300)
        floors[calibrate] = calql.run(20)
    assert floors[False]["calql_bound_rate"] == 0.0
    assert floors[True]["calql_bound_rate"] > 0.0
    assert floors[True]["calql_q_policy"] > floors[False]["calql_q_policy"]


def test_a_categorical_critic_stays_within_the_returns():
    calql = make_calql(critic_atoms=21, calql_alpha=5.0, critic_lr=3e-3)
    figures = calql.run(100)
    assert figures["q_out_of_bound"] == 0.0
    assert 0.0 <= figures["calql_q_policy"] <= 1.0


def test_the_lagrange_multiplier_moves_towards_its_gap():
    high = make_calql(calql_lagrange=True, calql_target_gap=100.0, calql_lagrange_lr=0.05)
    low = make_calql(calql_lagrange=True, calql_target_gap=-100.0, calql_lagrange_lr=0.05)
    assert high.run(20)["calql_alpha"] < 0.7 < low.run(20)["calql_alpha"]


def test_same_seed_same_numbers_and_state_goes_on_bit_for_bit():
    options = {"calql_lagrange": True, "calql_lagrange_lr": 0.05}
    one, other = make_calql(seed=3, **options), make_calql(seed=3, **options)
    assert one.run(5) == other.run(5)
    third = make_calql(seed=8, **options)
    third.sac.networks.load_state_dict(weights(one.sac))
    third.sac.load_state_dict(one.sac.state_dict())
    third.load_state_dict(one.state_dict())
    optimizer = copy.deepcopy(one.sac.optimizers["critic"].state_dict())
    third.sac.optimizers["critic"].load_state_dict(optimizer)
    third.offline.generator.set_state(one.offline.generator.get_state())
    assert one.run(4) == third.run(4)
    assert same_weights(weights(one.sac), weights(third.sac))
    assert third.steps == 9
    assert np.array_equal(one.state_dict()["log_multiplier"], third.state_dict()["log_multiplier"])


def test_the_weights_of_the_critics_are_fitted_to_the_target():
    calql = make_calql(
        target_reduction="weighted",
        actor_reduction="weighted",
        critic_lr=0.01,
        calql_alpha=0.0,
        num_critics=2,
        num_subsample_critics=2,
    )
    critic = calql.sac.networks.critic
    with torch.no_grad():
        critic.layers[-1].bias[1] += 20.0  # far from every return
    calql.run(5)
    assert torch.softmax(critic.reduction_logits, 0)[0] > 0.5


@pytest.mark.parametrize("bias", [-1.0, 0.5])
def test_a_success_is_one_whatever_the_bias(bias):
    ring = make_ring(1)  # half of the episodes end with a reward of 1
    for success in (True, False):
        view = ring.schema.view(ring._rows, "reward")
        r = torch.zeros(len(view))
        r[3] = float(success)
        view.copy_(r + bias)
        if success:
            CalQLInitialization.check(ring, reward_bias=bias)
        else:
            with pytest.raises(OfflineDataError, match="positive reward"):
                CalQLInitialization.check(ring, reward_bias=bias)
