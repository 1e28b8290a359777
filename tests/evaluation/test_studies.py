"""The studies play what a run plays: its own base policy, and the actor that acts."""

import contextlib

import numpy as np
import pytest
import torch

import envs
from envs.observations import ENVIRONMENT_STATE
from experiments.studies.critic_beliefs import NUM_ENVS, ask, env_config_of
from experiments.studies.noise import exploring
from experiments.studies.robustness import acting
from experiments.studies.toppled import tilt_and_rise
from pld_ray.algorithm.residual.acting import Actor
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import BASE_ACTION
from pld_ray.config import TrainConfig
from pld_ray.policies import ChunkCache, load_base_policy
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.vector_env import InfosPerEnv


def test_of_another_base_policy_and_an_average():
    config = TrainConfig()
    config.policy.path = "pld_tabletop_act_five_demonstrations"
    with contextlib.closing(InfosPerEnv(create_vector_env(env_config_of(config)))) as env:
        observation, _ = env.reset(seed=0)
        tasks = [envs.LiberoEnv(config.env.suite, config.env.task).task_description] * NUM_ENVS
        own, shipped = (
            ChunkCache(load_base_policy(path), NUM_ENVS).act(observation, tasks).clip(-1, 1)
            for path in (config.policy.path, None)
        )
        assert np.allclose(observation[BASE_ACTION], own, atol=1e-5)
        assert not np.allclose(observation[BASE_ACTION], shipped, atol=1e-2)

        networks = ResidualNetworks.of_spaces(
            env.single_observation_space, env.single_action_space, config.algorithm
        )
        with torch.no_grad():  # the trained actor pushes, its average does not yet
            for parameter in networks.actor.parameters():
                parameter.add_(1.0)
        assert not ask(networks.eval(), observation)["delta"].any()

        actor, shape = Actor(networks), observation[BASE_ACTION].shape
        quiet = acting(actor)(observation)
        none, some, all_of_it = (
            exploring(actor, ExplorationNoise("ar1", *shape, np.random.default_rng(0)), part)(
                observation
            )
            for part in (0.0, 0.25, 1.0)
        )
        assert np.array_equal(none, quiet)
        assert 0 < np.abs(some - quiet).sum() < np.abs(all_of_it - quiet).sum()


def test_the_tilt_and_the_rise_that_an_observation_shows_are_those_of_the_target():
    with contextlib.closing(envs.LiberoEnv()) as env:
        first, _ = env.reset(options={"init_state_id": 0})
        height = env.expert_view()["target_pos"][2]
        data = env._env.sim.data
        joint = env._env.objects_dict[env.expert_view()["target"]].joints[-1]
        pose = data.get_joint_qpos(joint)
        pose[2] += 0.1
        pose[3:] = [np.cos(0.6), np.sin(0.6), 0, 0]
        data.set_joint_qpos(joint, pose)
        second = env.step(np.zeros(7, np.float32))[0]
        tilt, rise = tilt_and_rise(np.stack([o[ENVIRONMENT_STATE] for o in (first, second)]))
        assert tilt[0] < 0.01
        assert tilt[1] == pytest.approx(1.2, abs=0.01)
        assert rise[1] == pytest.approx(env.expert_view()["target_pos"][2] - height, abs=1e-6)
        assert rise[1] > 0.05
