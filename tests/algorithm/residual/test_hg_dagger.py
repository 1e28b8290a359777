"""HG-DAgger: the loss by hand, one update written again, and rows that nobody made."""

import copy

import pytest
import torch
from update_fixtures import ACT, BATCH, make_params, make_update, same_weights, weights

from pld_ray.algorithm.residual import losses


def hg_dagger(**options):
    return make_update(make_params(actor_loss="hg_dagger", **options))


def batch_of(update, acted):
    """A batch in which a person acted in these rows."""
    batch = update.sample_from(update.replay)
    batch["intervened"] = torch.as_tensor(acted)
    return batch


HALF = [row % 2 == 0 for row in range(BATCH)]


def test_the_loss_by_hand():
    base = torch.tensor([[0.0, 0.2], [0.5, 0.0], [0.0, 0.0]])
    action = torch.tensor([[0.3, 0.2], [-1.0, 0.1], [1.0, 1.0]])
    # with beta 0.6 and factors 1 and 0.5, one unit is 0.6 and 0.3; -2.5 is beyond what it reaches
    executed = losses.executed_residual(base, action, 0.6, torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(executed[:2], torch.tensor([[0.5, 0.0], [-1.0, 1 / 3]]))
    delta = torch.tensor([[0.1, 0.2], [-0.5, 0.0], [0.9, -0.9]])
    imitated = torch.tensor([True, True, False])
    # 0.4^2 + 0.2^2 and 0.5^2 + (1/3)^2, of three rows
    expected = (0.16 + 0.04 + 0.25 + 1 / 9) / 3
    assert losses.imitation_loss(delta, executed, imitated).item() == pytest.approx(expected)


@pytest.mark.parametrize("compose_base", [True, False])
def test_one_update_equals_the_equations_and_trains_the_actor_alone(compose_base):
    update = hg_dagger(compose_base=compose_base, ema_decay=0.75)
    batch = batch_of(update, HALF)
    networks, dims = copy.deepcopy(update.networks), torch.tensor([1.0, 0.5, 0.0])
    observation = (batch["observation"] - networks.normalizer.mean) / networks.normalizer.std
    mean, _ = networks.actor(observation.clamp(-10, 10), batch["base_action"])
    error = 0.0
    for row in range(0, BATCH, 2):
        for dim in (0, 1):  # the third carries no residual
            away = batch["action"][row, dim] - batch["base_action"][row, dim]
            wanted = (away / (0.6 * dims[dim])).clamp(-1, 1)
            error = error + (torch.tanh(mean[row, dim]) - wanted) ** 2
    loss = error / BATCH
    optimizer = torch.optim.Adam(networks.actor.parameters(), update.params.actor_lr)
    loss.backward()
    optimizer.step()

    before = weights(update)
    update.metrics.clear()
    update.step(batch)
    figures = update.metrics.means()
    assert figures["actor_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert figures["imitated_share"] == 0.5
    after = update.networks.state_dict()
    for name, value in networks.actor.state_dict().items():
        # Adam's first step is lr * sign(gradient): any wrong gradient moves a weight by 1e-3
        torch.testing.assert_close(after[f"actor.{name}"], value, rtol=1e-5, atol=2e-5)
        averaged = 0.75 * before[f"ema_actor.{name}"] + 0.25 * value
        torch.testing.assert_close(after[f"ema_actor.{name}"], averaged, rtol=1e-5, atol=2e-5)
    kept = [name for name in before if not name.startswith(("actor.", "ema_actor."))]
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert update.updates == 1


def test_rows_that_nobody_made_leave_the_gradient_exactly_zero():
    update = hg_dagger()
    before = weights(update)
    for _ in range(3):
        update.step(batch_of(update, [False] * BATCH))
    gradients = [p.grad for p in update.networks.actor.parameters()]
    assert all(not gradient.any() for gradient in gradients)
    assert same_weights(before, weights(update))


def test_what_the_policy_did_itself_does_not_matter():
    one, two = hg_dagger(), hg_dagger()
    batch = batch_of(one, HALF)
    other = {key: values.clone() for key, values in batch.items()}
    other["action"][1::2] = torch.rand(BATCH // 2, ACT)
    one.step(batch)
    two.step(other)
    assert same_weights(weights(one), weights(two))
    other["action"][0] = 0.9
    one.step(batch)
    two.step(other)
    assert not same_weights(weights(one), weights(two))


@pytest.mark.parametrize("compose_base", [True, False])
def test_the_policy_comes_to_act_as_the_person_did(compose_base):
    scale = 2.0 if compose_base else 1.0
    params = {"residual_scale": scale, "residual_dims": [], "actor_lr": 5e-3}
    update = hg_dagger(compose_base=compose_base, **params)
    batch = batch_of(update, HALF)
    observation = {"observation.state": batch["observation"], "base_action": batch["base_action"]}
    for _ in range(400):
        update.step({key: values.clone() for key, values in batch.items()})
    acted = batch["intervened"]
    played, _ = update.networks.act(observation)
    torch.testing.assert_close(played[acted], batch["action"][acted], atol=0.05, rtol=0)
    assert (played - batch["action"])[~acted].abs().mean() > 0.2
