"""Options of the update: reductions, dropout, categorical critics, discrete grippers, no base."""

import copy

import pytest
import torch
from update_fixtures import ACT, BATCH, make_params, make_update, same_weights, weights

from pld_ray.algorithm import ensemble
from pld_ray.algorithm.categorical import gaussian
from pld_ray.algorithm.residual import losses
from pld_ray.networks.grippers import HOLD


def next_batch(update):
    replay = copy.deepcopy(update.replay)
    return replay.sample(BATCH, update.params.n_step, update.params.gamma)


def test_two_of_two_is_clipped_double_q():
    """N = M = 2 with `min`, against the two critics taken one by one."""
    update = make_update(make_params(num_critics=2, num_subsample_critics=2))
    batch, networks = next_batch(update), update.networks
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    with torch.no_grad():
        x, base = networks.normalizer(batch["next_observation"]), batch["next_base_action"]
        noise = torch.randn(1, BATCH, ACT, generator=generator)
        delta, _ = losses.sample_residual(*networks.actor(x, base), noise, networks.residual_dims)
        action = losses.compose_action(base, delta[0], 0.6, networks.residual_dims)
        q1, q2 = (networks.target_critic(x, base, action, torch.tensor([i]))[0] for i in (0, 1))
        y = batch["reward"] + batch["discount"] * torch.minimum(q1, q2)
        ours, _ = update.td_target(batch)
    torch.testing.assert_close(ours, y)


def test_only_the_drawn_members_of_the_target_are_evaluated():
    update = make_update(make_params(num_critics=5, num_subsample_critics=2))
    with torch.no_grad():
        for layer in update.networks.target_critic.layers:
            layer.bias[2:] = float("nan")
    seen = 0
    for _ in range(30):
        batch = next_batch(update)
        y, _ = update.td_target(batch)
        state = update.generator.get_state()
        seen += bool(y.isnan().any())
        update.generator.set_state(state)
    assert 0 < seen < 30  # a draw of members 0 and 1 does not touch the others


def test_learned_weights_favour_the_member_that_fits():
    params = make_params(target_reduction="weighted", actor_reduction="weighted", critic_lr=0.05)
    update = make_update(params)
    critic = update.networks.critic
    q = torch.stack([torch.full((BATCH,), 0.5), torch.full((BATCH,), 3.0)])
    target = torch.full((BATCH,), 0.5)
    optimizer = torch.optim.Adam([critic.reduction_logits], 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        ensemble.weighting_loss(q, target, critic.reduction_logits).backward()
        optimizer.step()
    assert torch.softmax(critic.reduction_logits, 0)[0] > 0.95
    reduced = ensemble.reduce_ensemble(q, "weighted", critic.reduction_logits)
    by_hand = (torch.softmax(critic.reduction_logits, 0)[:, None] * q).sum(0)
    torch.testing.assert_close(reduced, by_hand)
    before = critic.reduction_logits.clone()
    update.run(3)
    assert not torch.equal(before, critic.reduction_logits)


def test_the_weights_learn_without_touching_the_critics():
    q = torch.randn(2, BATCH, requires_grad=True)
    logits = torch.zeros(2, requires_grad=True)
    ensemble.weighting_loss(q, torch.randn(BATCH), logits).backward()
    assert q.grad is None
    assert logits.grad.abs().sum() > 0


def test_dropout_keeps_the_mean_and_is_repeated_by_the_seed():
    update = make_update(make_params(critic_dropout=0.5, hidden_dims=[4096], num_critics=1,
                                     num_subsample_critics=1))  # fmt: skip
    critic, batch = update.networks.critic, next_batch(update)
    x = update.networks.normalizer(batch["observation"])
    inputs = (x, batch["base_action"], batch["action"])
    critic.dropout_generator = None
    critic.layer_norm = False
    clean = critic(*inputs)
    critic.dropout_generator = torch.Generator().manual_seed(0)
    draws = torch.stack([critic(*inputs) for _ in range(50)])
    assert draws.std(0).min() > 0
    torch.testing.assert_close(draws.mean(0), clean, rtol=0.2, atol=0.02)
    one, other = (make_update(make_params(critic_dropout=0.3), seed=5) for _ in range(2))
    assert one.run(4) == other.run(4)
    assert same_weights(weights(one), weights(other))


def test_a_categorical_critic_learns_the_reward_and_stays_in_its_range():
    params = make_params(critic_atoms=21, critic_smoothing=0.0, critic_lr=5e-3, gamma=1e-6)
    update = make_update(params)
    start = update.run(5)
    update.run(300)
    end = update.run(20)
    assert end["critic_loss"] < 0.4 * start["critic_loss"]
    assert end["q_out_of_bound"] == 0.0
    batch = next_batch(update)
    x = update.networks.normalizer(batch["observation"])
    q = update.networks.critic(x, batch["base_action"], batch["action"]).mean(0)
    assert (q - batch["reward"]).abs().mean() < 0.1


def drawn_target_values(update, batch):
    """What a target is made of, from the networks one by one: Q [M, K, B] of the drawn members,
    log pi [K, B], the members; with the update's own random numbers."""
    params, networks = update.params, update.networks
    generator = torch.Generator()
    generator.set_state(update.generator.get_state())
    x, base = networks.normalizer(batch["next_observation"]), batch["next_base_action"]
    noise = torch.randn(params.otf_candidates, BATCH, ACT, generator=generator)
    delta, log_prob = losses.sample_residual(
        *networks.actor(x, base), noise, networks.residual_dims
    )
    members = ensemble.draw_members(params.num_critics, params.num_subsample_critics, generator)
    drawn = range(params.num_critics) if members is None else members.tolist()
    q = torch.stack(
        [
            torch.stack([networks.target_critic(x, base, action)[m] for action in actions])
            for m in drawn
            for actions in [losses.compose_action(base, delta, 0.6, networks.residual_dims)]
        ]
    )
    return q, log_prob, drawn


@pytest.mark.parametrize(("atoms", "smoothing"), [(1, 0.0), (41, 0.0), (41, 0.75)])
def test_the_entropy_of_the_successor_is_discounted(atoms, smoothing):
    """y = r + discount (Q' - alpha log pi'); a wide range, so that the projection clips nothing."""
    params = make_params(
        critic_atoms=atoms, value_range=[-20.0, 20.0], backup_entropy=True, otf_candidates=3,
        temperature_init=0.5, gamma=0.5, critic_smoothing=smoothing,
    )  # fmt: skip
    update = make_update(params)
    batch = next_batch(update)
    with torch.no_grad():
        q, log_prob, _ = drawn_target_values(update, batch)
        value = torch.minimum(q[0], q[1]) - 0.5 * log_prob
        expected = batch["reward"] + batch["discount"] * value.max(0).values
        y, distribution = update.td_target(batch)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-3 if smoothing else 1e-4)
    if smoothing:
        atoms = update.networks.target_critic.atoms
        assert torch.allclose(distribution, gaussian(expected, smoothing, atoms), atol=1e-4)


@pytest.mark.parametrize("atoms", [1, 21])
def test_learned_weights_are_those_of_the_drawn_members(atoms):
    params = make_params(
        critic_atoms=atoms,
        critic_smoothing=0.0,
        num_critics=4,
        num_subsample_critics=2,
        target_reduction="weighted",
        temperature_init=1e-6,
    )
    update = make_update(params)
    logits = torch.tensor([2.0, -1.0, 0.5, -3.0])
    with torch.no_grad():
        update.networks.target_critic.reduction_logits.copy_(logits)
    seen = set()
    for _ in range(8):
        batch = next_batch(update)
        with torch.no_grad():
            q, _, drawn = drawn_target_values(update, batch)
            one, other = logits[drawn].exp()
            value = (one * q[0, 0] + other * q[1, 0]) / (one + other)
            y, _ = update.td_target(batch)
        torch.testing.assert_close(y, batch["reward"] + batch["discount"] * value)
        seen.add(tuple(drawn))
    assert len(seen) > 2


def test_without_tanh_the_residual_is_clipped_and_the_density_gaussian():
    mean, log_std = torch.tensor([[0.5, -2.0]]), torch.tensor([[-1.0, 0.0]])
    noise = torch.tensor([[1.0, -1.0]])
    delta, log_prob = losses.sample_residual(mean, log_std, noise, torch.ones(2), False)
    u = mean + log_std.exp() * noise
    torch.testing.assert_close(delta, u.clamp(-1, 1))
    reference = torch.distributions.Normal(mean, log_std.exp()).log_prob(u).sum(-1)
    torch.testing.assert_close(log_prob, reference)
    assert make_update(make_params(use_tanh_squash=False)).run(3)["actor_loss"] != 0


def test_without_a_base_the_action_is_the_residual_alone():
    params = make_params(compose_base=False, residual_dims=[], residual_scale=1.0)
    update = make_update(params)
    batch = update.sample_from(update.replay)
    assert not batch["base_action"].any()
    assert not batch["next_base_action"].any()
    assert update.networks.critic.observes_base_action is False
    delta = torch.rand(1, BATCH, ACT) * 2 - 1
    torch.testing.assert_close(update.compose(batch["base_action"], delta), delta)


def test_the_first_actor_weights_lie_within_init_final():
    head = make_update_head(init_final=0.05)
    assert 0 < head.abs().max() <= 0.05
    assert make_update_head(init_final=0.0).abs().max() == 0


def make_update_head(**options):
    from pld_ray.algorithm.residual.networks import ResidualNetworks

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ResidualNetworks(5, ACT, make_params(**options)).actor.head.weight.detach()


@pytest.mark.parametrize("atoms", [1, 11])
def test_compiled_networks_make_the_same_updates(atoms):
    """Plumbing and autograd; `inductor`, which also generates code, is in the learning tests."""
    options = {"critic_atoms": atoms, "otf_candidates": 2, "num_critics": 3}
    eager = make_update(make_params(**options))
    compiled = make_update(make_params(**options, compile_backend="aot_eager"))
    one, other = eager.run(4), compiled.run(4)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-4, atol=1e-5)


# --- discrete gripper ----------------------------------------------------------------------------


def discrete_update(**options):
    return make_update(make_params(gripper="discrete", gripper_dims=[2], **options), discrete=True)


def test_a_discrete_gripper_is_learned_beside_the_residual():
    update = discrete_update(critic_lr=5e-3)
    before = weights(update)
    figures = update.run(200)
    after = weights(update)
    changed = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
    assert {"discrete_critic", "target_discrete_critic", "critic", "actor"} <= changed
    assert figures["discrete_critic_loss"] < 1.0
    first = discrete_update(critic_lr=5e-3).run(5)["discrete_critic_loss"]
    assert update.run(5)["discrete_critic_loss"] < first


def test_the_gripper_s_target_is_double_dqn_at_the_successor():
    """The online critic chooses at (x', base'), the target critic judges there; by hand."""
    update = discrete_update()
    networks, batch = update.networks, next_batch(update)
    randomise = torch.Generator().manual_seed(5)
    for critic in (networks.discrete_critic, networks.target_discrete_critic):
        torch.nn.init.normal_(critic.head.weight, std=0.5, generator=randomise)
    with torch.no_grad():
        x, next_x = (networks.normalizer(batch[k]) for k in ("observation", "next_observation"))
        inputs = torch.cat([next_x, batch["next_base_action"]], -1)
        online, target = (
            critic.head(critic.trunk(inputs))
            for critic in (networks.discrete_critic, networks.target_discrete_critic)
        )
        rows = torch.arange(BATCH)
        judged = target[rows, online.argmax(-1)]
        assert not torch.equal(judged, target.max(-1).values)
        y = batch["reward"] + batch["discrete_penalty"] + batch["discount"] * judged
        q = networks.discrete_critic(x, batch["base_action"])
        made = q[rows, batch["discrete_action"].long()]
    update.update_discrete_critic(batch, x)
    loss = update.metrics.means()["discrete_critic_loss"]
    assert loss == pytest.approx(((made - y) ** 2).mean().item(), rel=1e-5)


def test_the_continuous_part_does_not_see_the_gripper():
    update = discrete_update()
    batch = update.sample_from(update.replay)
    assert not batch["action"][:, 2].any()
    delta = torch.ones(1, BATCH, ACT)
    assert not update.compose(batch["base_action"], delta)[..., 2].any()
    assert update.networks.residual_dims[2] == 0


def test_no_residual_moves_a_gripper_though_residual_dims_name_it():
    update = discrete_update(residual_dims=[1.0, 1.0, 1.0])
    moved = update.networks.compose(torch.zeros(BATCH, ACT), torch.ones(1, BATCH, ACT))
    torch.testing.assert_close(moved, torch.tensor([0.6, 0.6, 0.0]).expand(1, BATCH, ACT))


def test_two_grippers_are_held_until_something_is_learned():
    params = make_params(gripper="discrete", gripper_dims=[0, 2])
    update = make_update(params, discrete=True)
    networks, batch = update.networks, next_batch(update)
    q = networks.discrete_critic(networks.normalizer(batch["observation"]), batch["base_action"])
    assert (q.argmax(-1) == HOLD + 3 * HOLD).all()


def test_the_gripper_s_critic_learns_and_is_normalised_as_the_others_are():
    for layer_norm in (True, False):
        update = discrete_update(critic_lr=1e-3, actor_lr=2e-3, critic_layer_norm=layer_norm)
        (group,) = update.optimizers["discrete_critic"].param_groups
        assert group["lr"] == 1e-3
        kinds = {type(module) for module in update.networks.discrete_critic.modules()}
        assert (torch.nn.LayerNorm in kinds) is layer_norm


@pytest.mark.parametrize("n_step", [1, 3])
def test_the_penalty_is_part_of_the_discrete_target_at_any_number_of_steps(n_step):
    update = discrete_update(n_step=n_step)
    batch = next_batch(update)
    assert (batch["discrete_penalty"] < 0).any()
    ring = update.replay.online
    rows = ring.start_rows()[:8]
    window, mask = ring.windows(rows, n_step)
    penalties = ring.column("discrete_penalty", window) * mask
    powers = update.params.gamma ** torch.arange(n_step)
    sampled = ring.gather(rows, n_step, update.params.gamma).unpack(ring.schema)
    torch.testing.assert_close(sampled["discrete_penalty"], penalties @ powers)


def test_the_weights_are_fitted_to_the_target():
    q, target = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([1.0, 0.5])
    logits = torch.zeros(2, requires_grad=True)
    loss = ensemble.weighting_loss(q, target, logits)
    assert loss.item() == pytest.approx((0.5**2 + 0.0) / 2)
    loss.backward()
    assert logits.grad[1] < 0 < logits.grad[0]  # descent favours the one that lies at the target


def test_members_are_drawn_without_replacement_and_each_as_often():
    generator = torch.Generator().manual_seed(0)
    drawn = [sorted(ensemble.draw_members(4, 2, generator).tolist()) for _ in range(600)]
    counts = [drawn.count([i, j]) for i in range(4) for j in range(i + 1, 4)]
    assert sum(counts) == 600
    assert all(60 < count < 140 for count in counts)
    assert ensemble.draw_members(3, 3, generator) is None
