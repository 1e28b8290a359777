"""Acting sees, chooses and composes what the learner trains: encoders, task, bounds."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from update_fixtures import make_params

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.networks.grippers import hold_all

STATE, LENGTH = 5, 40
LOW, HIGH = np.float32([-2, 0, 1]), np.float32([4, 0.5, 3])


def make_networks(params, inference_only=False, low=-1.0, high=1.0, tasks=2):
    box = gym.spaces.Box
    action = box(np.broadcast_to(np.float32(low), 3), np.broadcast_to(np.float32(high), 3))
    spaces = {
        "observation.state": box(-np.inf, np.inf, (STATE,), np.float32),
        "task_index": box(0, tasks - 1, (), np.float32),
        "base_action": action,
    }
    spaces = gym.spaces.Dict(spaces)
    names = ["lift", "pour"][:tasks]
    networks = ResidualNetworks.of_spaces(spaces, action, params, tasks=names)
    if inference_only:
        networks.keep_what_acts()
    return networks, replay_schema(networks, spaces, action)


def make_learner(params, **kwargs):
    """A learner whose replay holds one episode, and that episode's observations."""
    networks, schema = make_networks(params, **kwargs)
    rng, rows = np.random.default_rng(0), LENGTH + 1
    low, high = networks.action_low.numpy(), networks.action_high.numpy()
    columns = {
        "observation.state": rng.normal(size=(rows, STATE)),
        "task_index": rng.integers(2, size=rows),
        "base_action": rng.uniform(low, high, (rows, 3)),
        "action": rng.uniform(low, high, (rows, 3)),
        "reward": rng.random(rows),
        "residual_scale": np.ones(rows),
        "discrete_action": rng.integers(3, size=rows),
        "discrete_penalty": np.zeros(rows),
    }
    columns = {name: np.float32(value) for name, value in columns.items()}
    columns |= {name: np.zeros(rows, bool) for name in ("terminated", "truncated", "intervened")}
    replay = make_replay(schema, params, torch.device("cpu"), seed=1)
    replay.online.add_episodes(columns, [LENGTH], params.gamma)
    networks.normalizer.fit(replay.observations())
    update = ResidualSACUpdate(networks, make_optimizers(networks, params), replay, params)
    keys = ("observation.state", "task_index", "base_action")
    return update, {key: columns[key][:LENGTH] for key in keys}


def randomise(layer):
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(layer.bias)


def stored_batch(update):
    ring = update.replay.online
    return ring.gather(ring.start_rows(), 1, 0.9).unpack(ring.schema)


def as_runner(networks, params, **kwargs):
    """The networks of an env runner, with the weights that travel to it."""
    runner, _ = make_networks(params, inference_only=True, **kwargs)
    runner.load_state_dict(networks.acting_state())
    return Actor(runner)


@pytest.mark.parametrize("shared_encoder", [True, False])
def test_the_gripper_s_critic_sees_when_acting_what_it_sees_in_training(shared_encoder):
    params = make_params(
        gripper="discrete",
        gripper_dims=[2],
        shared_encoder=shared_encoder,
        state_encoder_hidden_dim=12,
    )
    update, observation = make_learner(params)
    networks = update.networks
    randomise(networks.discrete_critic.head)
    batch = stored_batch(update)
    with torch.no_grad():
        x = update.networks.encode(update.critic_encoder, batch)
        q = networks.discrete_critic(x, batch["base_action"])
        networks.discrete_critic.head.bias.sub_(q.mean(0))
        greedy = (q - q.mean(0)).argmax(-1)
    assert len(greedy.unique()) > 1
    _, choice = as_runner(networks, params).act(observation)
    np.testing.assert_array_equal(choice, greedy.numpy())


def test_what_travels_holds_the_critics_encoder_only_where_a_gripper_needs_it():
    for gripper, travels in (("discrete", True), ("continuous", False)):
        params = make_params(
            gripper=gripper, gripper_dims=[2], shared_encoder=False, state_encoder_hidden_dim=12
        )
        names = {key.split(".")[0] for key in make_networks(params)[0].acting_state()}
        assert ("critic_encoder" in names) is travels
        assert not names & {"critic", "target_critic", "target_encoder", "log_alpha"}


def test_the_task_is_told_when_acting_as_in_training():
    params = make_params(task_embedding="learned", task_embedding_dim=4)
    update, observation = make_learner(params)
    networks = update.networks
    randomise(networks.actor.head)
    batch = stored_batch(update)
    with torch.no_grad():
        mean, _ = networks.actor(
            update.networks.encode(networks.encoder, batch), batch["base_action"]
        )
        expected = update.compose(batch["base_action"], torch.tanh(mean))
    actor = as_runner(networks, params)
    np.testing.assert_allclose(actor.act(observation)[0], expected.numpy(), atol=1e-6)
    other = {**observation, "task_index": 1 - observation["task_index"]}
    assert np.abs(actor.act(other)[0] - expected.numpy()).max() > 1e-3


@pytest.mark.parametrize("gripper", ["continuous", "discrete"])
def test_without_a_base_every_action_of_the_space_can_be_reached(gripper):
    """delta in [-1, 1] spans the bounds; a gripper's three choices are their ends and middle."""
    dims = [1.0, 1.0, 0.0 if gripper == "discrete" else 1.0]
    params = make_params(
        compose_base=False,
        residual_scale=1.0,
        residual_dims=dims,
        gripper=gripper,
        gripper_dims=[2],
    )
    update, observation = make_learner(params, low=LOW, high=HIGH)
    networks, middle = update.networks, (LOW + HIGH) / 2
    actor = as_runner(networks, params, low=LOW, high=HIGH)
    assert set(np.unique(actor.act(observation)[0], axis=0).ravel()) == set(middle)
    ends = {}
    for sign in (-1.0, 1.0):
        delta = torch.full((1, LENGTH, 3), sign)
        zeros = torch.zeros(LENGTH, 3)
        ends[sign] = update.compose(zeros, delta)[0].unique(dim=0).squeeze(0).numpy()
        with torch.no_grad():
            networks.actor.head.bias[:3] = 20 * sign  # tanh: 1 to the last bit
        acted = as_runner(networks, params, low=LOW, high=HIGH).act(observation)[0]
        np.testing.assert_allclose(acted[:, :2], np.tile(ends[sign][:2], (LENGTH, 1)))
    reached = slice(2) if gripper == "discrete" else slice(3)
    np.testing.assert_allclose(ends[-1.0][reached], LOW[reached])
    np.testing.assert_allclose(ends[1.0][reached], HIGH[reached])
    if gripper == "discrete":  # as in the stored actions of `sample_from`, bounds without a 0
        assert (ends[-1.0][2], ends[1.0][2]) == (0, 0)
        choices = np.arange(LENGTH) % 3
        acted, chosen = actor.act(observation, forced_choice=choices)
        np.testing.assert_array_equal(chosen, choices)
        np.testing.assert_allclose(acted[:, 2], np.float32([1, 2, 3])[choices])
        assert actor.act(observation)[1].tolist() == [hold_all(1)] * LENGTH


def test_with_a_base_the_residual_counts_in_action_units():
    params = make_params(residual_scale=0.25, residual_dims=[1.0, 1.0, 1.0])
    update, observation = make_learner(params, low=LOW, high=HIGH)
    base = torch.from_numpy(observation["base_action"])
    composed = update.compose(base, torch.ones(1, LENGTH, 3))[0]
    torch.testing.assert_close(
        composed, (base + 0.25).clamp(torch.from_numpy(LOW), torch.from_numpy(HIGH))
    )


@pytest.mark.parametrize(
    "setting", [{"compose_base": False}, {"warmup_actions": "random"}, {"gripper": "discrete"}]
)
def test_a_space_without_bounds_cannot_be_spanned(setting):
    params = make_params(gripper_dims=[2], **setting)
    with pytest.raises(ValueError, match=rf"{next(iter(setting))}=.*no bounds in dimensions \[2\]"):
        make_networks(params, high=[1, 1, np.inf])
    make_networks(make_params(), high=[1, 1, np.inf])
