"""The RLModule holds the networks whole, and of an env runner's those that act."""

from dataclasses import asdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from update_fixtures import make_params

from pld_ray.rllib.module import ResidualModule

SPACE = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
OBSERVATIONS = gym.spaces.Dict(
    {"observation.state": gym.spaces.Box(-np.inf, np.inf, (5,), np.float32), "base_action": SPACE}
)
TRAINED_ONLY = {"critic", "target_critic", "critic_encoder", "target_encoder", "log_alpha"}


def make_module(inference_only=False, **params):
    return ResidualModule(
        observation_space=OBSERVATIONS,
        action_space=SPACE,
        inference_only=inference_only,
        model_config={"params": asdict(make_params(**params)), "seed": 0},
    )


@pytest.mark.parametrize("gripper", ["continuous", "discrete"])
def test_a_runner_takes_what_acts_from_a_learner_or_a_checkpoint(gripper):
    params = {"gripper": gripper, "gripper_dims": [2], "shared_encoder": False}
    module, runner = make_module(**params), make_module(inference_only=True, **params)
    sent = module.get_state(inference_only=True)
    assert sent.keys() == runner.get_state().keys()
    assert not {name.split(".")[0] for name in sent} & TRAINED_ONLY - {"critic_encoder"}
    for state in (sent, module.get_state()):  # the second holds critics too
        with torch.no_grad():
            runner.networks.actor.head.bias.fill_(9.0)
        runner.set_state(state)
        assert torch.equal(runner.networks.actor.head.bias, module.networks.actor.head.bias)
    assert runner.get_non_inference_attributes() == []


def test_the_names_of_a_checkpoint_are_those_of_earlier_releases():
    """`learner.safetensors` and registered policies name networks without a prefix."""
    names = {name.split(".")[0] for name in make_module().get_state()}
    assert names == {
        "actor", "critic", "target_critic", "normalizer", "log_alpha", "residual_scale",
        "residual_dims", "action_low", "action_high",
    }  # fmt: skip


@pytest.mark.parametrize(("low", "high", "fits"), [(0, 0, True), (0, 4, False), (-1, 0, False)])
def test_an_environment_shows_tasks_that_the_embedding_has(low, high, fits):
    space = gym.spaces.Box(low, high, (), np.float32)
    config = {"params": asdict(make_params(task_embedding="learned")), "seed": 0, "tasks": ["lift"]}
    spaces = gym.spaces.Dict({**OBSERVATIONS.spaces, "task_index": space})
    given = {"observation_space": spaces, "action_space": SPACE}
    if fits:
        ResidualModule(**given, model_config=config)
    else:
        with pytest.raises(ValueError, match=r"task_index is Box\(.*the tasks of a run, 1 of"):
            ResidualModule(**given, model_config=config)
    unread = config | {"params": asdict(make_params(task_embedding="none"))}
    ResidualModule(**given, model_config=unread)


def test_networks_of_another_shape_are_not_taken():
    with pytest.raises(RuntimeError, match="size mismatch"):
        make_module().set_state(make_module(hidden_dims=[8]).get_state())


def test_a_checkpoint_of_an_older_release_is_read_as_it_was(tmp_path):
    module = make_module(ema_decay=0.0)
    params = module.model_config["params"]
    del params["ema_decay"]  # came later, and is not 0 by default
    params["success_share"] = 0.25  # is gone
    module.save_to_path(tmp_path)
    again = ResidualModule.from_checkpoint(tmp_path)
    assert again.networks.params.ema_decay == 0
    assert torch.equal(again.networks.actor.head.weight, module.networks.actor.head.weight)
