"""The studies play what a run plays: its own base policy, and the actor that acts."""

import contextlib

import numpy as np
import torch

import envs
from experiments.studies.critic_beliefs import NUM_ENVS, ask, env_config_of
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import BASE_ACTION
from pld_ray.config import TrainConfig
from pld_ray.policies import ChunkCache, load_base_policy
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
