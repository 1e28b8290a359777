"""Actor, critic ensemble and normaliser against member-by-member arithmetic."""

import pytest
import torch
import torch.nn.functional as F

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks import CriticEnsemble, GaussianActor, ObservationNormalizer

OBS, ACT, BATCH = 11, 4, 32
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def batch(k=None):
    shape = (BATCH, ACT) if k is None else (k, BATCH, ACT)
    return torch.randn(BATCH, OBS), torch.rand(BATCH, ACT) * 2 - 1, torch.rand(shape) * 2 - 1


def one_member(critic, member, observation, base_action, action):
    """Q of one member by plain linear layers."""
    parts = (
        [observation, base_action, action]
        if critic.observes_base_action
        else [
            observation,
            action,
        ]
    )
    hidden = torch.cat(parts, -1)
    for number, layer in enumerate(critic.layers):
        hidden = F.linear(hidden, layer.weight[member].T, layer.bias[member, 0])
        if number + 1 < len(critic.layers):
            if critic.layer_norm:
                hidden = F.layer_norm(hidden, hidden.shape[-1:])
            hidden = F.relu(hidden)
    return hidden.squeeze(-1)


@pytest.mark.parametrize("hidden_dims", [(16,), (16, 24), (8, 8, 8)])
@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("observes_base_action", [True, False])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_ensemble_equals_its_members_one_by_one(n, observes_base_action, layer_norm, hidden_dims):
    critic = CriticEnsemble(OBS, ACT, n, hidden_dims, layer_norm, observes_base_action)
    inputs = batch()
    q = critic(*inputs)
    members = torch.stack([one_member(critic, i, *inputs) for i in range(n)])
    torch.testing.assert_close(q, members, **CLOSE)
    weights = torch.randn_like(q)
    parameters = list(critic.parameters())
    ours = torch.autograd.grad((q * weights).sum(), parameters)
    reference = torch.autograd.grad((members * weights).sum(), parameters)
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("observes_base_action", [True, False])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_otf_equals_calling_the_critic_for_each_candidate(k, observes_base_action, layer_norm):
    critic = CriticEnsemble(OBS, ACT, 3, (16, 16), layer_norm, observes_base_action)
    observation, base_action, actions = batch(k)
    q = critic.otf(observation, base_action, actions)
    one_by_one = torch.stack([critic(observation, base_action, a) for a in actions], dim=1)
    assert q.shape == (3, k, BATCH)
    torch.testing.assert_close(q, one_by_one, **CLOSE)


def test_otf_passes_the_same_gradient_to_the_actions():
    critic = CriticEnsemble(OBS, ACT, 2, (16, 16))
    observation, base_action, actions = batch(3)
    actions.requires_grad_()
    (ours,) = torch.autograd.grad(
        critic.otf(observation, base_action, actions).square().sum(), actions
    )
    one_by_one = torch.stack([critic(observation, base_action, a) for a in actions], dim=1)
    (reference,) = torch.autograd.grad(one_by_one.square().sum(), actions)
    torch.testing.assert_close(ours, reference, **CLOSE)


def test_only_the_drawn_members_are_evaluated():
    critic = CriticEnsemble(OBS, ACT, 5, (16, 16))
    observation, base_action, actions = batch(2)
    members = torch.tensor([4, 1])
    full = critic.otf(observation, base_action, actions)
    with torch.no_grad():  # members that are not drawn must not even be read
        for layer in critic.layers:
            layer.weight[[0, 2, 3]] = torch.nan
    q = critic.value(critic.otf_outputs(observation, base_action, actions, members))
    torch.testing.assert_close(q, full[members], **CLOSE)
    one = critic(observation, base_action, actions[0], members)
    torch.testing.assert_close(one, full[members, 0], **CLOSE)


def test_members_start_different():
    critic = CriticEnsemble(OBS, ACT, 4)
    q = critic(*batch())
    assert (q.unsqueeze(0) - q.unsqueeze(1)).abs().mean(-1)[~torch.eye(4).bool()].min() > 1e-3


# --- actor ---------------------------------------------------------------------------------------


def test_actor_starts_as_no_residual_for_every_input():
    actor = GaussianActor(OBS, ACT, (16, 16), log_std_init=-0.7)
    observation, base_action, _ = batch()
    mean, log_std = actor(observation * 100, base_action)
    assert torch.equal(mean, torch.zeros(BATCH, ACT))
    torch.testing.assert_close(log_std, torch.full((BATCH, ACT), -0.7))


def test_deterministic_action_at_start_is_the_base_action_bit_for_bit():
    networks = ResidualNetworks(OBS, ACT, ResidualSACParams(residual_dims=[]))
    observation, base_action, _ = batch()
    mean, _ = networks.actor(networks.normalizer(observation), base_action)
    action = networks.compose(base_action, torch.tanh(mean))
    assert torch.equal(action, base_action)


def test_log_std_stays_in_its_range():
    actor = GaussianActor(OBS, ACT, (16,), log_std_min=-1.0, log_std_max=0.5)
    torch.nn.init.normal_(actor.head.weight, std=10.0)
    _, log_std = actor(*batch()[:2])
    assert log_std.min() == -1.0
    assert log_std.max() == 0.5


# --- normaliser ----------------------------------------------------------------------------------


def test_normalizer_is_the_identity_until_it_is_fitted():
    x = torch.randn(8, OBS) * 100
    assert torch.equal(ObservationNormalizer(OBS)(x), x)


def test_normalizer_standardises_clips_and_survives_constant_features():
    normalizer = ObservationNormalizer(3)
    data = torch.stack([torch.randn(500) * 5 + 2, torch.full((500,), 7.0), torch.randn(500)], 1)
    normalizer.fit(data)
    z = normalizer(data)
    torch.testing.assert_close(z.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std(0)[[0, 2]], torch.ones(2), atol=1e-3, rtol=0)
    assert torch.equal(z[:, 1], torch.zeros(500))
    assert normalizer(torch.full((1, 3), 1e9)).tolist() == [[10.0, 10.0, 10.0]]
    other = ObservationNormalizer(3)
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(other(data), z)


def test_normalizer_names_what_is_wrong():
    with pytest.raises(ValueError, match="need \\[n, 3\\]"):
        ObservationNormalizer(3).fit(torch.randn(10, 4))
    with pytest.raises(ValueError, match="at least two"):
        ObservationNormalizer(3).fit(torch.randn(1, 3))


# --- all of them ---------------------------------------------------------------------------------


def test_residual_networks_start_with_equal_target_and_given_temperature():
    params = ResidualSACParams(temperature_init=0.01, residual_scale=0.4)
    networks = ResidualNetworks(OBS, 7, params)
    for a, b in zip(networks.critic.parameters(), networks.target_critic.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
        assert not b.requires_grad
    assert networks.log_alpha.exp().item() == pytest.approx(0.01, rel=1e-5)
    assert networks.residual_scale.item() == pytest.approx(0.4)
    assert networks.residual_dims.tolist() == params.residual_dims


def test_residual_dims_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="residual_dims has 2 entries but actions have 4"):
        ResidualNetworks(OBS, ACT, ResidualSACParams(residual_dims=[1.0, 0.0]))
