"""A base policy that draws noise: evaluations repeat, and training does not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from envs.point import PointEnv
from pld_ray.evaluation.play import play_init_states
from pld_ray.plugin.acting import ActingPolicy
from pld_ray.policies.protocol import Prediction
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

STATES = list(range(7))


class Noisy:
    """Moves towards the goal, with noise of more than the step."""

    action_dim, n_action_steps, fingerprint = 7, 4, "noisy"
    input_features = {"observation.environment_state": (24,)}

    def __init__(self):
        self.seeds: list[int] = []

    def infer(self, observations, tasks, env_ids, seeds=None):
        self.seeds += seeds
        noise = [np.random.default_rng(seed).normal(scale=0.6, size=(4, 7)) for seed in seeds]
        chunks = np.array(noise, np.float32)
        towards = observations["observation.environment_state"][:, None, :3] / 0.05
        chunks[..., :3] += 0.5 * np.clip(towards, -1, 1)
        return Prediction(chunks)


def environments(n, policy=None):
    return InfosPerEnv(BaseActionVectorEnv([PointEnv() for _ in range(n)], policy or Noisy()))


def returns(env, states):
    played = play_init_states(env, states)
    return [(played[i].length, played[i].sum_reward) for i in sorted(played)]


def test_an_evaluation_repeats_whatever_was_played_before_and_whoever_plays_which_share():
    env = environments(2)
    first = returns(env, STATES)
    assert len(set(first)) > 1
    assert returns(env, STATES) == first  # and once more in the same process
    assert returns(environments(3), STATES[::-1]) == first
    shares = [returns(environments(1), STATES[:4]), returns(environments(2), STATES[4:])]
    assert shares[0] + shares[1] == first


def test_an_episode_of_an_init_state_is_seeded_by_it_in_every_environment():
    class Asked(PointEnv):
        def reset(self, *, seed=None, options=None):
            asked.append((seed, options))
            return super().reset(seed=seed, options=options)

    asked = []
    env = InfosPerEnv(BaseActionVectorEnv([Asked(), Asked()], Noisy()))
    play_init_states(env, STATES)
    states = [(seed, options["init_state_id"]) for seed, options in asked if options]
    assert sorted(states) == [(state, state) for state in STATES]


@pytest.mark.parametrize("seed", [1, 2])
def test_training_draws_other_noise_with_another_seed_and_in_each_environment(seed):
    def drawn(seed):
        policy = Noisy()
        env = environments(2, policy)
        env.reset(seed=seed)
        for _ in range(12):
            env.step(np.zeros((2, 7), np.float32))
        return policy.seeds

    assert drawn(seed) == drawn(seed)
    assert not set(drawn(seed)) & set(drawn(seed + 10))
    assert len(set(drawn(seed))) == len(drawn(seed))


@pytest.mark.parametrize("n", [1, 3])
def test_a_policy_folder_draws_the_noise_of_the_evaluation(n):
    """`lerobot-eval` plays the init states i, i + n, ... in environment i."""
    space = PointEnv().observation_space
    key = "observation.environment_state"
    observations = gym.spaces.Dict({key: space[key]})
    policy = Noisy()
    acting = ActingPolicy(policy, None, observations, gym.spaces.Box(-1, 1, (7,), np.float32))
    for _ in range(2):
        acting.predict({key: np.zeros((n, 24), np.float32)}, [True] * n)
    evaluated = Noisy()
    for state in range(2 * n):
        env = environments(1, evaluated)
        env.unwrapped.set_init_states([state])
        env.reset(seed=0)
    assert policy.seeds == evaluated.seeds
