import pathlib
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers.vector import DictInfoToList

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from toy import CountingEnv, CountingPolicy

from pld_ray.policies import Prediction
from pld_ray.rollout.vector_env import (
    BaseActionVectorEnv,
    InfosPerEnv,
    check_policy_matches,
    seed_per_env,
)


def test_base_action_is_the_chunk_played_open_loop_and_restarts_with_each_episode():
    env = BaseActionVectorEnv([CountingEnv(length=3)], CountingPolicy())
    observation, _ = env.reset(seed=0)
    seen = [observation["base_action"][0]]
    for _ in range(5):
        observation, _, _, _, _ = env.step(np.zeros((1, 3), dtype=np.float32))
        seen.append(observation["base_action"][0])
    # (episode, step of the request, index in the chunk); three steps cut the second chunk short
    expected = [(0, 0, 0), (0, 0, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0), (1, 0, 1)]
    np.testing.assert_allclose(np.array(seen) * 100, expected, atol=1e-5)


def test_autoreset_is_next_step_and_the_final_observation_has_a_base_action():
    env = BaseActionVectorEnv([CountingEnv(length=2), CountingEnv(length=3)], CountingPolicy())
    env.reset(seed=0)
    action = np.ones((2, 3), dtype=np.float32)
    _, _, _, truncated, _ = env.step(action)
    assert truncated.tolist() == [False, False]
    observation, _, _, truncated, _ = env.step(action)
    assert truncated.tolist() == [True, False]
    assert observation["observation.state"][0].tolist() == [0, 2]
    assert observation["base_action"][0, 1] == np.float32(0.02)
    observation, reward, _, truncated, _ = env.step(action)
    assert observation["observation.state"].tolist() == [[1, 0], [0, 3]]
    assert reward[0] == 0
    assert truncated.tolist() == [False, True]
    # the reset step's action never reached the environment
    assert len(env.envs[0].actions) == 2


def test_queued_init_states_are_used_in_order_then_sampling_returns():
    env = BaseActionVectorEnv([CountingEnv(length=1)], CountingPolicy())
    env.set_init_states([7, 3])
    _, infos = env.reset(seed=0)
    ids = [infos["init_state_id"][0]]
    for _ in range(4):
        _, _, _, _, infos = env.step(np.zeros((1, 3), dtype=np.float32))
        ids.append(infos["init_state_id"][0])
    assert ids == [7, 7, 3, 3, -1]


def test_base_action_is_clipped_to_the_action_space():
    class Loud(CountingPolicy):
        def infer(self, observations, tasks, env_ids, seeds=None):
            return Prediction(np.full((len(env_ids), 2, 3), 5, dtype=np.float32))

    env = BaseActionVectorEnv([CountingEnv()], Loud())
    observation, _ = env.reset()
    assert observation["base_action"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_dim": 7}, r"acts in 7 dimensions but the environment takes 3"),
        (
            {"input_features": {"observation.images.image": (3, 8, 8)}},
            r"needs \['observation.images",
        ),
        ({"input_features": {"observation.state": (9,)}}, r"of shape \(9,\), not \(2,\)"),
    ],
)
def test_a_policy_for_another_environment_is_refused(change, message):
    policy = CountingPolicy()
    for name, value in change.items():
        setattr(policy, name, value)
    with pytest.raises(ValueError, match=message):
        BaseActionVectorEnv([CountingEnv()], policy)


def test_seeds_are_independent_children():
    seeds = seed_per_env(0, 4)
    assert len(set(seeds)) == 4
    assert seeds == seed_per_env(0, 4)
    assert seeds != seed_per_env(1, 4)
    with pytest.raises(ValueError, match="2 seeds for 3"):
        seed_per_env([1, 2], 3)


def test_environments_of_runs_with_neighbouring_seeds_share_none():
    assert len({seed for run in range(4) for seed in seed_per_env(run, 8)}) == 4 * 8


class SeeingPolicy(CountingPolicy):
    """Its feature is ten times the observation that it was asked with."""

    feature_dim = 2

    def infer(self, observations, tasks, env_ids, seeds=None):
        features = 10 * observations["observation.state"].astype(np.float32)
        return super().infer(observations, tasks, env_ids, seeds)._replace(features=features)


def test_features_of_the_chunk_being_played_are_part_of_the_observation():
    env = BaseActionVectorEnv([CountingEnv(length=9)], SeeingPolicy())
    observation, _ = env.reset(seed=0)
    assert env.single_observation_space["observation.features"].shape == (2,)
    seen = [observation["observation.features"][0].tolist()]
    for _ in range(3):
        observation, _, _, _, _ = env.step(np.zeros((1, 3), dtype=np.float32))
        seen.append(observation["observation.features"][0].tolist())
    assert seen == [[0, 0], [0, 0], [0, 20], [0, 20]]  # chunks of two steps
    assert env.observation_space.contains(observation)


def test_a_policy_whose_cameras_have_other_names_is_told_the_rename_map():
    class Looking(CountingPolicy):
        input_features = {"observation.images.front": (3, 8, 8), "observation.state": (2,)}

    picture = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    given = gym.spaces.Dict(
        {**CountingEnv().observation_space.spaces, "observation.images.image": picture}
    )
    with pytest.raises(ValueError, match="needs") as raised:
        check_policy_matches(Looking(), given, CountingEnv().action_space)
    message = str(raised.value)
    renames = '{"observation.images.image": "observation.images.front"}'
    assert f"--policy.rename_map='{renames}'" in message
    for name in ("observation.images.front", "observation.images.image", "observation.state"):
        assert f"'{name}'" in message


def test_infos_per_env_are_what_gymnasiums_wrapper_makes_of_the_arrays():
    def play(wrapper):
        env = wrapper(
            BaseActionVectorEnv([CountingEnv(length=2), CountingEnv(length=3)], CountingPolicy())
        )
        env.unwrapped.set_init_states([4, 5, 6])
        steps = [env.reset(seed=0)]
        steps += [env.step(np.zeros((2, 3), dtype=np.float32)) for _ in range(5)]
        return steps

    ours, theirs = play(InfosPerEnv), play(DictInfoToList)
    for mine, stock in zip(ours, theirs, strict=True):
        assert mine[-1] == stock[-1]
        for key, value in mine[0].items():
            np.testing.assert_array_equal(value, stock[0][key])
        np.testing.assert_array_equal(mine[1:-1], stock[1:-1])
