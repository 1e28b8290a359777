"""What the base policy says of recorded episodes is what it said when they were played."""

import gymnasium as gym
import numpy as np
import pytest
from toy import CountingEnv, CountingPolicy

from pld_ray.config import ResidualSACParams
from pld_ray.networks.grippers import CLOSE, HOLD, OPEN
from pld_ray.policies.protocol import Prediction
from pld_ray.rollout.base_actions import AT_ONCE, with_base_actions, with_gripper_labels
from pld_ray.rollout.vector_env import BaseActionVectorEnv


class SeeingPolicy(CountingPolicy):
    """Its feature is ten times the observation that it was asked with; chunks of three."""

    n_action_steps = 3
    feature_dim = 2

    def infer(self, observations, tasks, env_ids, seeds=None):
        state = observations["observation.state"]
        counted = np.tile(np.arange(3.0)[:, None], (len(state), 1, 1))
        chunks = np.concatenate([np.repeat(state[:, None] / 100, 3, axis=1), counted], -1)
        return Prediction(chunks, (10 * state).astype(np.float32))


def recorded(policy, lengths, prefetch):
    """One episode of each environment, base action and all."""
    env = BaseActionVectorEnv([CountingEnv(n) for n in lengths], policy, prefetch)
    observation, _ = env.reset(seed=0)
    rows = [[] for _ in lengths]
    for step in range(max(lengths) + 1):
        for i, n in enumerate(lengths):
            if step <= n:
                rows[i].append({key: value[i].copy() for key, value in observation.items()})
        observation, *_ = env.step(np.zeros((len(lengths), 3), np.float32))
    episodes = [{key: np.stack([r[key] for r in row]) for key in row[0]} for row in rows]
    for episode in episodes:
        episode["reward"] = np.zeros(len(episode["base_action"]), np.float32)
    return env, episodes


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("policy", [CountingPolicy(), SeeingPolicy()])
def test_recomputed_is_what_was_played(policy, prefetch):
    lengths = [3, 8, 5]
    env, episodes = recorded(policy, lengths, prefetch)
    made = ("base_action", "observation.features")
    bare = [{k: v for k, v in episode.items() if k not in made} for episode in episodes]
    space = env.single_action_space
    again = with_base_actions(bare, policy, "count", space, prefetch)
    for one, was in zip(again, episodes, strict=True):
        assert one.keys() == was.keys()
        for key in was:
            np.testing.assert_array_equal(one[key], was[key], err_msg=key)


def test_there_may_be_more_episodes_than_are_asked_about_together():
    policy = CountingPolicy()
    env, episodes = recorded(policy, [2 + i % 3 for i in range(40)], False)
    bare = [{k: v for k, v in e.items() if k != "base_action"} for e in episodes]
    again = with_base_actions(bare, policy, "count", env.single_action_space)
    for one, was in zip(again, episodes, strict=True):
        np.testing.assert_array_equal(one["base_action"], was["base_action"])


def test_no_two_episodes_are_labelled_with_the_same_noise():
    class Noisy(CountingPolicy):
        drawn = []

        def infer(self, observations, tasks, env_ids, seeds=None):
            self.drawn += seeds
            return super().infer(observations, tasks, env_ids)

    policy, space = Noisy(), gym.spaces.Box(-1, 1, (3,), np.float32)
    _, episodes = recorded(CountingPolicy(), [3] * (AT_ONCE + 8), False)
    bare = [{k: v for k, v in e.items() if k != "base_action"} for e in episodes]
    with_base_actions(bare, policy, "count", space)
    assert len(policy.drawn) > len(bare)
    assert len(set(policy.drawn)) == len(policy.drawn)


def test_a_recorded_grasp_is_labelled_by_what_was_sent():
    """HIL-SERL's rule on commands that a person sent; `hold` sends the middle of the range."""
    sent = np.float32([1, 1, 0, -1, 0.4, -0.6, 0.6, 0])
    action = np.zeros((8, 3), np.float32)
    action[:, 2] = sent
    episode = {"action": action, "base_action": 0 * action, "reward": np.zeros(8, np.float32)}
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    params = ResidualSACParams(
        gripper="discrete", gripper_dims=[2], grasp_penalty=0.25, compose_base=False
    )
    (labelled,) = with_gripper_labels([episode], params, space)
    expected = [CLOSE, CLOSE, HOLD, OPEN, HOLD, OPEN, CLOSE, 0]  # the last row is the final frame
    assert labelled["discrete_action"].tolist() == expected
    assert labelled["discrete_penalty"].tolist() == [-0.25, 0, 0, -0.25, 0, 0, -0.25, 0]
    (kept,) = with_gripper_labels([{**labelled, "discrete_action": action[:, 0]}], params, space)
    assert not kept["discrete_action"].any()
    chosen = {key: values for key, values in kept.items() if key != "discrete_penalty"}
    (kept,) = with_gripper_labels([chosen], params, space)  # by this run's penalty
    assert not kept["discrete_action"].any()
    assert kept["discrete_penalty"].tolist() == labelled["discrete_penalty"].tolist()
    assert with_gripper_labels([episode], ResidualSACParams(), space) == [episode]


def test_the_policy_is_told_the_task_and_its_actions_are_clipped():
    class Far(CountingPolicy):
        told = []

        def infer(self, observations, tasks, env_ids, seeds=None):
            self.told += tasks
            chunks = super().infer(observations, tasks, env_ids, seeds).chunks
            return Prediction(100 * chunks - 1.5)

    policy = Far()
    state = np.float32([[0, 0], [0, 1], [0, 2]])
    episode = {"observation.state": state, "reward": np.zeros(3, np.float32)}
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    (one,) = with_base_actions([episode], policy, "count", space)
    assert set(policy.told) == {"count"}
    expected = [[-1, -1, -1], [-1, -1, -0.5], [-1, 0.5, -1]]  # of the frames 0, 0 and 2
    np.testing.assert_allclose(one["base_action"], expected, atol=1e-5)
