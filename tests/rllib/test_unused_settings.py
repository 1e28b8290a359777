"""RLlib settings that change nothing here are refused; those that do something are one each."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from ray import tune
from ray.rllib.algorithms.callbacks import make_multi_callbacks
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.search.variant_generator import generate_variants

from envs.point import PointEnv
from pld_ray.rllib import ResidualSACConfig, unused_settings
from pld_ray.rllib.module import ResidualModule


class OfEpisodes(RLlibCallback):
    def on_episode_end(self, **kwargs):
        raise AssertionError("nobody calls it")


class OfResults(RLlibCallback):
    def on_train_result(self, **kwargs):
        """It is called."""


def nothing(**kwargs):
    """A callback."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.training(lr=1e-3), r"training\(lr\) .* use training\(actor_lr"),
        (lambda c: c.training(grad_clip=1.0), r"grad_clip\) .* use training\(grad_clip_norm"),
        (lambda c: c.training(train_batch_size=64), r"use training\(batch_size=\.\.\.\)"),
        (lambda c: c.training(num_epochs=3), r"num_epochs\) changes nothing here"),
        (lambda c: c.training(minibatch_size=8), r"minibatch_size\) changes nothing here"),
        (lambda c: c.training(learner_connector=nothing), r"learner_connector\) changes nothing"),
        (
            lambda c: c.env_runners(env_to_module_connector=nothing),
            r"env_to_module_connector\) changes nothing",
        ),
        (
            lambda c: c.env_runners(module_to_env_connector=nothing),
            r"module_to_env_connector\) changes nothing",
        ),
        (lambda c: c.env_runners(gym_env_vectorize_mode="sync"), 'use .*"vectorization": "in_pr'),
        (lambda c: c.env_runners(sample_timeout_s=2), r"use training\(stall_timeout_s"),
        (lambda c: c.env_runners(explore=False), r"explore=False\) changes nothing"),
        (lambda c: c.evaluation(evaluation_duration=7), r"use evaluation\(held_init_states"),
        (lambda c: c.evaluation(evaluation_duration_unit="timesteps"), "duration_unit"),
        (lambda c: c.evaluation(held_init_states=[]), r"held_init_states=\[\]\): must be ids"),
        (lambda c: c.evaluation(held_init_states=[0, -5]), r"\[0, -5\]\): must be ids"),
        (
            lambda c: c.evaluation(evaluation_config={"held_init_states": [5]}),
            "evaluation_config: held_init_states changes nothing there",
        ),
        (lambda c: c.rl_module(model_config={"fcnet_hiddens": [7]}), r"training\(hidden_dims"),
        (
            lambda c: c.reporting(min_train_timesteps_per_iteration=10),
            r"use reporting\(min_sample_timesteps_per_iteration",
        ),
        (lambda c: c.offline_data(input_="folder"), r"use training\(demo_path"),
        (lambda c: c.debugging(seed=-1), r"seed=-1\): must be a whole number from 0"),
        (lambda c: c.callbacks(OfEpisodes), r"callbacks\(on_episode_end\) would never be called"),
        (lambda c: c.callbacks([OfResults, OfEpisodes]), "on_episode_end"),
        (lambda c: c.callbacks(on_sample_end=nothing), "on_sample_end"),
        (lambda c: c.environment(PointEnv), r"environment\(PointEnv\): use .*entry_point"),
        (lambda c: c.environment("Pendulum-v1"), r"environment\(Pendulum-v1\): use .*entry_point"),
        (lambda c: c.environment(env_config={"num_envs": 4}), "num_envs_per_env_runner"),
        (lambda c: c.environment(env_config={"kwarg": 1}), r"unknown keys \['kwarg'\]"),
        (lambda c: c.environment(env_config={"entry_point": "nope:Nope"}), "nope"),
        (lambda c: c.environment(env_config={"task": "tidy_up"}), "tidy_up"),
        (
            lambda c: c.training(control_hz=10.0).env_runners(num_envs_per_env_runner=2),
            "rate of one robot: set env_runners",
        ),
        (
            lambda c: c.training(norm_stats="s.json", normalize_observations=False),
            "of no use with normalize_observations=False",
        ),
        (
            lambda c: c.training(norm_stats="s.json", pretrained_critic="c"),
            "exclude each other",
        ),
        (
            lambda c: c.env_runners(rollout_fragment_length=7),
            r"rollout_fragment_length\) changes nothing here: use training\(sample_steps",
        ),
        (lambda c: c.env_runners(num_env_runners=-1), r"env_runners\(num_env_runners\)=-1: must"),
        (lambda c: c.env_runners(num_env_runners=1.5), r"=1.5: must be a whole number in \[0, 40"),
        (lambda c: c.env_runners(num_envs_per_env_runner=1.5), r"per_env_runner\)=1.5: must"),
        (lambda c: c.learners(num_learners=-2), r"learners\(num_learners\)=-2: must be a whole"),
        (lambda c: c.evaluation(evaluation_num_env_runners=-1), r"_num_env_runners\)=-1: must"),
        (
            lambda c: c.environment(env_config=[1]),
            r"environment\(env_config\)=\[1\]: must be a map",
        ),
        (
            lambda c: c.environment(env_config=None),
            r"environment\(env_config\)=None: must be a map",
        ),
        (lambda c: c.environment(env_config={"suite": 5}), "suite=5 must be a text"),
        (
            lambda c: c.environment(env_config={"entry_point": "envs.point:P", "kwargs": [1]}),
            r"kwargs=\[1\] must be a mapping of arguments",
        ),
        (lambda c: c.multi_agent(policies={"one", "other"}), "there is one agent"),
        (lambda c: c.api_stack(False, False), "only RLlib's new API stack"),
        (
            lambda c: c.base_policy(path=tune.grid_search(["a", "b"])),
            r"base_policy\(path\): Tune does not look",
        ),
        (lambda c: c.base_policy(n_action_steps=tune.choice([1, 2])), r"base_policy\(n_action_st"),
        (lambda c: c.human(device=tune.choice(["none"])), r"human\(device\): Tune does not look"),
    ],
)
def test_what_changes_nothing_is_refused_with_what_does(change, message):
    with pytest.raises(ValueError, match=message):
        change(ResidualSACConfig()).validate()


def test_what_rllib_does_here_is_taken(monkeypatch):
    monkeypatch.setattr(unused_settings._global_registry, "contains", lambda *key: False)
    config = ResidualSACConfig().callbacks(OfResults, on_train_result=nothing)
    config.evaluation(evaluation_config={"explore": False}, evaluation_interval=1)
    config.debugging(seed=np.int64(4)).evaluation(held_init_states=list(np.arange(3)))
    config.validate()
    ResidualSACConfig().callbacks(make_multi_callbacks([OfResults])).validate()
    config.get_evaluation_config_object().validate()


@pytest.mark.parametrize("name", ["batch_size", "train_batch_size_per_learner"])
def test_a_search_over_the_batch_size_has_no_twins(name):
    config = ResidualSACConfig().training(**{name: tune.grid_search([16, 32])})
    drawn = [plain for _, plain in generate_variants(config.to_dict())]
    sizes = [ResidualSACConfig().update_from_dict(plain).batch_size for plain in drawn]
    assert sizes == [16, 32]
    assert ResidualSACConfig().update_from_dict({name: 64}).learner_params().batch_size == 64


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("vector", [False, True])
def test_a_registered_environment_that_is_no_vector_of_ours_is_refused(vector):
    def make(env_config):
        if vector:
            return gym.make_vec("CartPole-v1", env_config["num_envs"])
        return gym.make("CartPole-v1")

    tune.register_env("cart_pole", make)
    config = ResidualSACConfig().environment("cart_pole").env_runners(num_env_runners=0)
    with pytest.raises(TypeError, match=r"environment\('cart_pole'\) must make .*entry_point"):
        config.build_algo()


class AbsentArm(PointEnv):
    def __init__(self):
        raise AssertionError("the arm does not answer")


@pytest.mark.usefixtures("ray_cluster")
def test_what_an_environment_asserts_itself_is_its_own_error():
    config = ResidualSACConfig().base_policy(type="none").env_runners(num_env_runners=0)
    config.environment(env_config={"entry_point": f"{__name__}:AbsentArm"})
    with pytest.raises(AssertionError, match="the arm does not answer"):
        config.build_algo()


class OwnModule(ResidualModule):
    """A user's own."""


@pytest.mark.usefixtures("ray_cluster")
def test_a_module_of_the_users_own_is_made_of_the_same_parts():
    config = ResidualSACConfig().base_policy(type="none").env_runners(num_env_runners=0)
    config.environment(env_config={"entry_point": "envs.point:PointEnv"})
    config.training(offline_episodes=0, warmup_actions="random", hidden_dims=[8])
    algorithm = config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnModule)).build_algo()
    try:
        module = algorithm.get_module()
        assert type(module).__name__ == "OwnModule"
        assert module.model_config["params"]["hidden_dims"] == config.hidden_dims
        assert isinstance(module.action_space, gym.spaces.Box)
    finally:
        algorithm.stop()
