"""Acting sees, chooses and composes what the learner trains: encoders, task, bounds."""

from dataclasses import asdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from update_fixtures import make_params

from pld_ray.algorithm.residual.stored_columns import make_replay
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.networks.grippers import hold_all
from pld_ray.rllib.module import ResidualModule
from pld_ray.rollout.acting import Actor

STATE, LENGTH = 5, 40
LOW, HIGH = np.float32([-2, 0, 1]), np.float32([4, 0.5, 3])


def make_module(params, inference_only=False, low=-1.0, high=1.0, tasks=2):
    box = gym.spaces.Box
    action = box(np.broadcast_to(np.float32(low), 3), np.broadcast_to(np.float32(high), 3))
    spaces = {
        "observation.state": box(-np.inf, np.inf, (STATE,), np.float32),
        "task_index": box(0, tasks - 1, (), np.float32),
        "base_action": action,
    }
    return ResidualModule(
        observation_space=gym.spaces.Dict(spaces),
        action_space=action,
        inference_only=inference_only,
        model_config={"params": asdict(params), "seed": 0, "tasks": ["lift", "pour"][:tasks]},
    )


def make_learner(params, **kwargs):
    """A learner whose replay holds one episode, and that episode's observations."""
    module = make_module(params, **kwargs)
    rng, rows = np.random.default_rng(0), LENGTH + 1
    low, high = module.action_space.low, module.action_space.high
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
    replay = make_replay(module, params, torch.device("cpu"), seed=1)
    replay.online.add_episodes(columns, [LENGTH], params.gamma)
    module.normalizer.fit(replay.observations())
    update = ResidualSACUpdate(module, make_optimizers(module, params), replay, params)
    keys = ("observation.state", "task_index", "base_action")
    return update, {key: columns[key][:LENGTH] for key in keys}


def randomise(layer):
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(layer.bias)


def stored_batch(update):
    ring = update.replay.online
    return ring.gather(ring.start_rows(), 1, 0.9).unpack(ring.schema)


def as_runner(module, params, **kwargs):
    """The module of an env runner, with the weights that travel to it."""
    runner = make_module(params, inference_only=True, **kwargs)
    runner.set_state(module.get_state(inference_only=True))
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
    module = update.networks
    randomise(module.discrete_critic.head)
    batch = stored_batch(update)
    with torch.no_grad():
        x = update.encode(update.critic_encoder, batch)
        q = module.discrete_critic(x, batch["base_action"])
        module.discrete_critic.head.bias.sub_(q.mean(0))
        greedy = (q - q.mean(0)).argmax(-1)
    assert len(greedy.unique()) > 1
    _, choice = as_runner(module, params).act(observation)
    np.testing.assert_array_equal(choice, greedy.numpy())


def test_what_travels_holds_the_critics_encoder_only_where_a_gripper_needs_it():
    for gripper, travels in (("discrete", True), ("continuous", False)):
        params = make_params(
            gripper=gripper, gripper_dims=[2], shared_encoder=False, state_encoder_hidden_dim=12
        )
        names = {key.split(".")[0] for key in make_module(params).get_state(inference_only=True)}
        assert ("critic_encoder" in names) is travels
        assert not names & {"critic", "target_critic", "target_encoder", "log_alpha"}


def test_the_task_is_told_when_acting_as_in_training():
    params = make_params(task_embedding="learned", task_embedding_dim=4)
    update, observation = make_learner(params)
    module = update.networks
    randomise(module.actor.head)
    batch = stored_batch(update)
    with torch.no_grad():
        mean, _ = module.actor(update.encode(module.encoder, batch), batch["base_action"])
        expected = update.compose(batch["base_action"], torch.tanh(mean))
    actor = as_runner(module, params)
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
    module, middle = update.networks, (LOW + HIGH) / 2
    actor = as_runner(module, params, low=LOW, high=HIGH)
    assert set(np.unique(actor.act(observation)[0], axis=0).ravel()) == set(middle)
    ends = {}
    for sign in (-1.0, 1.0):
        delta = torch.full((1, LENGTH, 3), sign)
        zeros = torch.zeros(LENGTH, 3)
        ends[sign] = update.compose(zeros, delta)[0].unique(dim=0).squeeze(0).numpy()
        with torch.no_grad():
            module.actor.head.bias[:3] = 20 * sign  # tanh: 1 to the last bit
        acted = as_runner(module, params, low=LOW, high=HIGH).act(observation)[0]
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
        make_module(params, high=[1, 1, np.inf])
    make_module(make_params(), high=[1, 1, np.inf])
