"""A residual that has hardly learnt, and how its evaluation plays."""

from __future__ import annotations

import numpy as np
from update_fixtures import PLAIN

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.evaluation.play import play_init_states
from pld_ray.rollout.factory import ENV_NAME, make_env
from pld_ray.rollout.vector_env import InfosPerEnv

SMALL = [
    "--env.task=lift_the_can",
    "--env.episode_length=60",
    "--algorithm.offline_episodes=1",
    "--algorithm.warmup_steps=60",
    "--algorithm.actor_delay_updates=0",
    "--algorithm.batch_size=16",
    "--algorithm.hidden_dims=[16,16]",
    "--algorithm.residual_scale=0.5",
    "--algorithm.init_final=0.05",
    *(f"--algorithm.{name}={value}" for name, value in PLAIN.items()),
    "--runners.num_env_runners=0",
    "--runners.sample_steps=60",
    "--seed=3",
]
STATES = (0, 1)


def evaluated_actions(algorithm):
    """Init state -> actions [L, 7], played as the env runner's `evaluate` does."""
    runner = algorithm.env_runner
    env = InfosPerEnv(make_env(ENV_NAME, {**runner.config.env_config, "num_envs": 1}))
    actor, played, last = Actor(runner.module.networks), {state: [] for state in STATES}, []

    def act(observation):
        last[:] = actor.act(observation)[0]
        return np.stack(last)

    play_init_states(env, STATES, act, lambda i, state: played[state].append(last[i].copy()))
    env.close()
    return {state: np.stack(actions) for state, actions in played.items()}
