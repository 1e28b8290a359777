"""Critics are asked about what the environment would execute, and about nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chunked_fixtures import ACTIONS, OBSERVATIONS, A, D, H, episodes, make_update
from torch import nn

from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.micro_batches import MicroBatch
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.replay import ChunkRing

GAUSSIAN = {"actor": "gaussian", "improvement": "sac", "temperature": 0.5}
ACTORS = [{}, {"improvement": "distill"}, {"improvement": "bptt"}, GAUSSIAN]


def of_one_moving(**options):
    """An update whose demonstrations never move component 0."""
    update = make_update(**options)
    update.networks.fit_actions(torch.tensor([[0.25, -1.0], [0.25, 3.0]]))
    return update


def spoil(networks):
    """Other first-layer weights of the critics for what does not move."""
    with torch.no_grad():
        for critic in (networks.critic, networks.target_critic):
            critic.layers[0].weight[:, -H * A :: A] = 9.0


@pytest.mark.parametrize("options", ACTORS)
def test_what_never_moves_decides_nothing(options):
    """Neither which candidate is played, nor any target or loss."""
    one, other = of_one_moving(**options), of_one_moving(**options)
    spoil(other.networks)
    observation = {"observation.state": torch.randn(8, D)}
    noise = torch.randn(16, 8, H, A)
    chosen = [update.networks.act(observation, noise) for update in (one, other)]
    assert torch.equal(*chosen)
    assert (chosen[0][..., 0] == 0.25).all()
    assert one.run(2) == other.run(2)
    for name, value in one.networks.actor.state_dict().items():
        assert torch.equal(value, other.networks.actor.state_dict()[name]), name


def test_where_everything_moves_critics_see_chunks_as_they_are():
    networks = make_update().networks
    x, chunks = torch.randn(5, D), torch.rand(7, 5, H, A) * 2 - 1
    assert torch.equal(networks.executed(chunks), chunks)
    flat = chunks.flatten(-2)
    assert torch.equal(networks.judge(x, chunks), networks.critic.otf(x, flat[0], flat))


def test_weights_of_an_older_release_play_by_the_range_that_they_hold():
    """The bounds travel with the weights, and say what moves: there is nothing else to save."""
    trained = of_one_moving().networks
    names = set(trained.state_dict())
    assert {n for n in names if "." not in n} == {"action_low", "action_high"}
    heir = make_update(seed=5, fill=False).networks
    heir.keep_what_acts()
    policy = ChunkPolicy(heir, {"observation.state": (D,)})
    policy.take_weights({k: v.numpy() for k, v in trained.acting_state().items()})
    assert heir.moved.tolist() == [False, True]
    observation = {"observation.state": np.zeros((1, D), np.float32)}
    before = policy.infer(observation, [""], [0]).chunks
    with torch.no_grad():
        heir.critic.layers[0].weight[:, -H * A :: A] = 9.0
    np.testing.assert_array_equal(policy.infer(observation, [""], [0]).chunks, before)


def test_a_gaussian_keeps_entropy_where_it_is_executed():
    update = of_one_moving(**GAUSSIAN)
    networks = update.networks
    x = networks.seen(update.sample()).vector
    kept = update.generator.get_state()
    _, log_prob = update.climb(MicroBatch({}, observation=x, x=x))
    update.generator.set_state(kept)
    mean, log_std = networks.actor(x)
    u = mean + log_std.exp() * update.noise(16, H, A)
    expected = losses.tanh_log_prob(u, mean, log_std)[..., 1].sum(-1)
    torch.testing.assert_close(log_prob, expected)
    loss = update.temperature_loss(MicroBatch({}), torch.tensor([1.0, 4.0]))
    log_alpha = networks.log_alpha.detach().squeeze()
    torch.testing.assert_close(loss.detach(), -log_alpha * (2.5 - 0.5 * H * 1))


def test_what_a_person_did_beyond_the_range_is_known():
    networks = of_one_moving().networks
    inside = torch.tensor([[0.25, -1.0], [0.25, 3.0], [0.25, 0.3]])
    assert networks.out_of_reach(inside) == {}
    assert networks.out_of_reach(inside + 1e-6) == {}
    person = torch.tensor([[0.25, 3.5], [-0.5, 1.0], [0.5, 1.0]])
    assert networks.out_of_reach(person) == pytest.approx({0: 0.75, 1: 0.5})
    assert networks.to_unit(person)[:, 0].tolist() == [0.0, 0.0, 0.0]


# --- a policy in its own units -------------------------------------------------------------------


class Own(nn.Module):
    """A `SeeingActor`: its noise, times a weight."""

    kind, noise_shape, feature_dim, cameras = "flow", (H, A), 1, ()

    def __init__(self, offset, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.action_offset, self.action_scale = torch.tensor(offset), torch.tensor(scale)

    def observe(self, vector, columns, task=None):
        return vector

    def features(self, observation):
        return torch.zeros(len(observation), 1)

    def sample(self, observation, noise):
        return noise * self.weight

    def bc_loss(self, observation, chunks, weights, noise, time, total=None):
        return losses.masked_mean((self.weight - chunks).square().mean(-1), weights, total)


def in_own_units(offset=(0.5, 1.0), scale=(0.25, 2.0), improvement="bptt"):
    params = ACRLPDParams(
        horizon=H, num_critics=2, hidden_dims=[16], critic_atoms=1, improvement=improvement,
        actor="lerobot", actor_path="x", target_candidates=4, batch_size=16,
    )  # fmt: skip
    return ChunkedNetworks.of_spaces(OBSERVATIONS, ACTIONS, params, seeing=Own(offset, scale))


def recorded(networks):
    """A list into which goes what the critics are given from now on, [..., H, A] each."""
    given = []

    def record(actions):
        given.append(actions.detach().unflatten(-1, (H, A)))
        return actions

    for critic in (networks.critic, networks.target_critic):
        outputs, otf = critic.outputs, critic.otf_outputs
        critic.outputs = lambda x, b, a, *m, of=outputs: of(x, b, record(a), *m)
        critic.otf_outputs = lambda x, b, a, *m, of=otf: of(x, b, record(a), *m)
    return given


@pytest.mark.parametrize("improvement", ["best_of_n", "bptt"])
def test_a_policy_in_its_own_units_is_judged_within_the_environment_s_bounds(improvement):
    networks = in_own_units(improvement=improvement)
    replay = make_replay(
        replay_schema(networks, OBSERVATIONS, ACTIONS), networks.params, torch.device("cpu"), 0,
        ring=ChunkRing,
    )  # fmt: skip
    replay.offline.add_episodes(*episodes(0), gamma=0.9)
    optimizers = make_optimizers(networks, networks.params)
    update = ChunkedUpdate(networks, optimizers, replay, networks.params)
    given = recorded(networks)
    draw = update.noise
    update.noise = lambda *shape: 9 * draw(*shape)
    update.run(1)
    assert len(given) == 3  # data, targets, and the choice for them or what climbs
    networks.act({"observation.state": torch.randn(6, D)}, 9 * torch.randn(8, 6, H, A))
    assert len(given) == 4
    low, high = torch.tensor([-6.0, -1.5]), torch.tensor([2.0, 1.5])
    for chunks in given:
        assert ((chunks >= low) & (chunks <= high)).all()
    reached = torch.cat([chunks.reshape(-1, H, A) for chunks in given])
    torch.testing.assert_close(reached.amin((0, 1)), low)
    torch.testing.assert_close(reached.amax((0, 1)), high)
    assert "lowest" not in networks.state_dict()  # checkpoints are what they were


@pytest.mark.parametrize(
    ("offset", "scale"),
    [
        pytest.param(0.3, 0.0, id="no spread"),
        pytest.param(0.3, 3e-8, id="what rounding leaves of it"),
        pytest.param(5e-9, 5e-9, id="the 1e-8 that LeRobot puts in its place"),
    ],
)
def test_a_component_that_a_policy_has_no_units_for_is_0(offset, scale):
    networks = in_own_units((offset, 0.0), (scale, 1.0))
    assert networks.moved.tolist() == [False, True]
    actions = torch.tensor([[offset, 0.5], [offset + 0.1, 0.5], [offset + 3e-8, 0.5]])
    expected = torch.tensor([[0.0, 0.5]]).expand(3, -1)
    assert torch.equal(networks.to_unit(actions), expected)
    assert torch.equal(networks.executed(torch.tensor([[5.0, 0.5]])), expected[:1])
    assert networks.out_of_reach(actions) == pytest.approx({0: 0.1})
    played = networks.act({"observation.state": torch.zeros(1, D)}, torch.randn(4, 1, H, A))
    torch.testing.assert_close(played[..., 0], torch.full((1, H), offset), atol=1e-7, rtol=0)


def test_a_small_spread_of_a_policy_is_no_absence_of_one():
    networks = in_own_units((0.3, -90.0), (1e-5, 1e-3))
    assert networks.moved.all()
