"""Open episodes step by step, on environments whose every number is known."""

import dataclasses

import numpy as np
import pytest
from fragile import FragileEnv
from hypothesis import given
from hypothesis import strategies as st
from toy import CountingEnv, CountingPolicy

from pld_ray.algorithm.params import ResidualSACParams
from pld_ray.rollout.env_group import InProcessEnvs
from pld_ray.rollout.streams import Ended, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

BETA = 0.25


@dataclasses.dataclass
class PlusHalf:
    """Base action + 0.5 in the last component; `raise_in` makes a `FragileEnv` raise."""

    residual_scale: float = BETA
    raise_in: tuple = ()
    calls: int = 0

    def act(self, observation, noise=None, forced_choice=None):
        assert noise.shape == observation["base_action"].shape
        action = observation["base_action"] + np.float32([0, 0, 0.5])
        self.calls += 1
        for env in self.raise_in if self.calls == 3 else ():
            action[env, 0] = 0.75
        return action, None


def open_streams(makers, actor=None, base_only=False, seed=0, **params):
    group = InProcessEnvs(makers)
    env = InfosPerEnv(BaseActionVectorEnv(group, CountingPolicy()))
    observation, _ = env.reset(seed=0)
    params = ResidualSACParams(**params)
    rng = np.random.default_rng(seed)
    space = env.unwrapped.single_action_space
    return env, Streams(observation, space, params, actor or PlusHalf(), rng, base_only)


def play(env, streams, steps, base_only=False, weights_updates=0):
    ended = Ended()
    taken = [
        streams.step(lambda a: env.step(a), base_only, weights_updates, ended) for _ in range(steps)
    ]
    return ended, taken


def test_base_policy_alone_is_stored_whole_and_a_reset_is_no_step():
    env, streams = open_streams(
        [lambda: CountingEnv(3), lambda: CountingEnv(5)], base_only=True, probe_steps=4
    )
    ended, taken = play(env, streams, 5, base_only=True)
    assert taken == [2, 2, 2, 1, 2]
    assert [result.length for result in ended.results] == [3, 5]
    short, long = ended.columns
    assert short["observation.state"].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert short["truncated"].tolist() == [False, False, True, False]
    assert not short["residual_scale"].any()
    np.testing.assert_array_equal(long["action"][:-1], long["base_action"][:-1])
    np.testing.assert_array_equal(long["action"][:-1], env.unwrapped.envs[1].actions)


@given(seed=st.integers(0, 1000), probe_steps=st.integers(0, 6))
def test_probing_steps_are_played_by_the_base_policy_and_not_stored(seed, probe_steps):
    env, streams = open_streams([lambda: CountingEnv(4)], seed=seed, probe_steps=probe_steps)
    ended, _ = play(env, streams, 25)
    executed = np.array(env.unwrapped.envs[0].actions)
    stored = iter(ended.columns)
    assert len(ended.results) == 5
    for episode, result in enumerate(ended.results):
        assert result.length == 4
        assert result.probe_steps <= min(probe_steps, 4)
        actions = executed[4 * episode : 4 * episode + 4]
        # the policy's last component is 0 or 0.01, the residual adds 0.5
        takeover = actions[:, 2] > 0.4
        assert takeover.tolist() == [t >= result.probe_steps for t in range(4)]
        if result.probe_steps == 4:
            continue  # nothing of it is stored
        columns = next(stored)
        np.testing.assert_array_equal(columns["action"][:-1], actions[takeover])
        assert columns["residual_scale"].tolist() == [BETA] * takeover.sum() + [0]
        assert columns["observation.state"][:, 1].tolist() == list(range(result.probe_steps, 5))
    assert next(stored, None) is None


def test_an_episode_that_its_environment_failed_is_not_stored_and_the_other_goes_on():
    actor = PlusHalf(raise_in=(0,))
    env, streams = open_streams([FragileEnv, FragileEnv], actor, use_probing=False)
    ended, taken = play(env, streams, 9)
    assert ended.num_env_failures == 1
    assert taken == [2, 2, 1, 1, 2, 1, 2, 2, 2]  # the failure, then a reset each
    assert [result.length for result in ended.results] == [5, 5]
    assert [len(c["reward"]) - 1 for c in ended.columns] == [5, 5]
    # the replacement counts its episodes anew, and its first is stored whole
    assert ended.columns[1]["observation.state"][:, 1].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_episode_remembers_the_weights_that_it_began_with():
    env, streams = open_streams([lambda: CountingEnv(3)], use_probing=False)
    assert play(env, streams, 2, weights_updates=7)[0].results == []
    ended, _ = play(env, streams, 5, weights_updates=9)
    assert [result.weights_updates for result in ended.results] == [7, 9]


def test_environments_that_were_replaced_altogether_end_the_streams():
    _, streams = open_streams([lambda: CountingEnv(3)])
    assert streams.step(lambda action: None, False, 0, Ended()) is None


@pytest.mark.parametrize("action", ["base", "random"])
def test_the_policy_s_own_action_stays_in_the_observation(action):
    """What is executed is a copy: an environment may change its action in place."""
    env, streams = open_streams([lambda: CountingEnv(3)], base_only=True, warmup_actions=action)

    def step(actions):
        results = env.step(actions)
        actions[:] = 9
        return results

    ended = Ended()
    for _ in range(3):
        streams.step(step, True, 0, ended)
    assert (ended.columns[0]["base_action"] < 1).all()
