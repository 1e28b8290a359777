"""Open episodes step by step, on environments whose every number is known."""

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from fragile import FragileEnv
from hypothesis import given
from hypothesis import strategies as st
from toy import CountingEnv, CountingPolicy

from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.grippers import CLOSE, HOLD, OPEN
from pld_ray.policies import Prediction
from pld_ray.rollout.env_group import InProcessEnvs
from pld_ray.rollout.gripper_record import GripperRecord
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.streams import FinishedEpisodes, Streams
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


def play(env, streams, steps, base_only=False, weights_updates=0, random_actions=False):
    finished = FinishedEpisodes()
    request = SampleRequest(1, base_only, random_actions)
    taken = [
        streams.step(lambda a: env.step(a), request, weights_updates, finished)
        for _ in range(steps)
    ]
    return finished, taken


def test_base_policy_alone_is_stored_whole_and_a_reset_is_no_step():
    env, streams = open_streams(
        [lambda: CountingEnv(3), lambda: CountingEnv(5)], base_only=True, probe_steps=4
    )
    finished, taken = play(env, streams, 5, base_only=True)
    assert taken == [2, 2, 2, 1, 2]
    assert [result.length for result in finished.summaries] == [3, 5]
    short, long = finished.columns
    assert short["observation.state"].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert short["truncated"].tolist() == [False, False, True, False]
    assert not short["residual_scale"].any()
    np.testing.assert_array_equal(long["action"][:-1], long["base_action"][:-1])
    np.testing.assert_array_equal(long["action"][:-1], env.unwrapped.envs[1].actions)


@given(seed=st.integers(0, 1000), probe_steps=st.integers(0, 6))
def test_probing_steps_are_played_by_the_base_policy_and_not_stored(seed, probe_steps):
    env, streams = open_streams([lambda: CountingEnv(4)], seed=seed, probe_steps=probe_steps)
    finished, _ = play(env, streams, 25)
    executed = np.array(env.unwrapped.envs[0].actions)
    stored = iter(finished.columns)
    assert len(finished.summaries) == 5
    for episode, result in enumerate(finished.summaries):
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
    finished, taken = play(env, streams, 9)
    assert finished.num_env_failures == 1
    assert taken == [2, 2, 1, 1, 2, 1, 2, 2, 2]  # the failure, then a reset each
    assert [result.length for result in finished.summaries] == [5, 5]
    assert [len(c["reward"]) - 1 for c in finished.columns] == [5, 5]
    # the replacement counts its episodes anew, and its first is stored whole
    assert finished.columns[1]["observation.state"][:, 1].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_episode_remembers_the_weights_that_it_began_with():
    env, streams = open_streams([lambda: CountingEnv(3)], use_probing=False)
    assert play(env, streams, 2, weights_updates=7)[0].summaries == []
    finished, _ = play(env, streams, 5, weights_updates=9)
    assert [result.weights_updates for result in finished.summaries] == [7, 9]


@pytest.mark.parametrize("random", [False, True])
def test_the_policy_s_own_action_stays_in_the_observation(random):
    """What is executed is a copy: an environment may change its action in place."""
    env, streams = open_streams([lambda: CountingEnv(3)], base_only=True)

    def step(actions):
        results = env.step(actions)
        actions[:] = 9
        return results

    finished = FinishedEpisodes()
    for _ in range(3):
        streams.step(step, SampleRequest(1, True, random), 0, finished)
    assert (finished.columns[0]["base_action"] < 1).all()


# --- discrete grippers ---------------------------------------------------------------------------

GRIPPER = 2
LENGTH = 7
SEQUENCE = [CLOSE, HOLD, CLOSE, HOLD, OPEN, HOLD, OPEN]


class GripperEnv(CountingEnv):
    """Bounds of the gripper that may differ from +-1."""

    def __init__(self, low=-1.0, high=1.0):
        super().__init__(LENGTH)
        self.action_space = gym.spaces.Box(
            np.float32([-1, -1, low]), np.float32([1, 1, high]), dtype=np.float32
        )


class Commanding(CountingPolicy):
    """The base policy commands the gripper by the observation's step; the rest is 0."""

    n_action_steps = 1

    def __init__(self, commands):
        self.commands = np.float32(commands)

    def infer(self, observations, tasks, env_ids, seeds=None):
        steps = observations["observation.state"][:, 1].astype(int) % len(self.commands)
        chunk = np.zeros((len(steps), 1, 3), dtype=np.float32)
        chunk[:, 0, GRIPPER] = self.commands[steps]
        return Prediction(chunk)


class Choosing:
    """The critic's part: chooses SEQUENCE, step by step, sent as `sent` says."""

    residual_scale = BETA

    def __init__(self, sent=(-1.0, 0.0, 1.0)):
        self.sent = np.float32(sent)

    def act(self, observation, noise=None, forced_choice=None):
        steps = observation["observation.state"][:, 1].astype(int) % LENGTH
        choice = np.array(SEQUENCE)[steps]
        action = observation["base_action"].copy()
        action[:, GRIPPER] = self.sent[choice]
        return action, choice


def gripper_streams(env, policy, actor=None, base_only=False, seed=0, **params):
    vector = InfosPerEnv(BaseActionVectorEnv([env, copy.copy(env)], policy))
    observation, _ = vector.reset(seed=0)
    params = ResidualSACParams(
        gripper="discrete", gripper_dims=[GRIPPER], grasp_penalty=0.25, use_probing=False, **params
    )
    space = vector.unwrapped.single_action_space
    rng = np.random.default_rng(seed)
    return vector, Streams(observation, space, params, actor or Choosing(), rng, base_only)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.5)])
def test_a_demonstrated_grasp_is_labelled_by_what_was_sent(low, high):
    """Without composition `hold` sends the middle: the base policy's own commands are labelled."""
    middle, half = (low + high) / 2, (high - low) / 2
    sent = middle + half * np.float32([1, 1, 0, -1, 0.4, -0.6, 0.6])
    env, streams = gripper_streams(
        GripperEnv(low, high), Commanding(sent), base_only=True, compose_base=False
    )
    finished, _ = play(env, streams, 2 * LENGTH + 1, base_only=True)
    for columns in finished.columns:
        np.testing.assert_allclose(columns["action"][:-1, GRIPPER], sent)
        expected = [CLOSE, CLOSE, HOLD, OPEN, HOLD, OPEN, CLOSE]
        assert columns["discrete_action"][:-1].tolist() == expected
        # closed at step 0, opened at 3, closed at 6
        assert columns["discrete_penalty"][:-1].tolist() == [-0.25, 0, 0, -0.25, 0, 0, -0.25]


def test_under_composition_a_base_step_is_held():
    """`hold` sends the base policy's command, whatever it is; the penalty sees the command."""
    sent = [1, 1, -1, -1, 0.4, -1, 1]
    env, streams = gripper_streams(GripperEnv(), Commanding(sent), base_only=True)
    finished, _ = play(env, streams, LENGTH, base_only=True)
    columns = finished.columns[0]
    assert columns["discrete_action"][:-1].tolist() == [HOLD] * LENGTH
    assert columns["discrete_penalty"][:-1].tolist() == [-0.25, 0, -0.25, 0, 0, 0, -0.25]


def test_the_penalty_is_hil_serl_s():
    """close, hold, close, hold, open, hold, open: it closes once and opens once."""
    env, streams = gripper_streams(GripperEnv(), Commanding([0.0]), compose_base=False)
    finished, _ = play(env, streams, 2 * (LENGTH + 1))
    assert len(finished.columns) == 4
    for columns in finished.columns:
        assert columns["discrete_action"][:-1].tolist() == SEQUENCE
        assert columns["discrete_penalty"][:-1].tolist() == [-0.25, 0, 0, 0, -0.25, 0, 0]


def test_the_action_that_a_reset_ignores_is_no_command():
    """In the reset step the observation is the last one's: its command would close the gripper."""
    sent = [-1, 0, 0, 0, 0, 0, 0, 1]  # the last is the final observation's
    env, streams = gripper_streams(
        GripperEnv(), Commanding(sent), base_only=True, compose_base=False
    )
    finished, _ = play(env, streams, 2 * (LENGTH + 1), base_only=True)
    assert len(finished.columns) == 4
    for columns in finished.columns:
        assert columns["base_action"][-1, GRIPPER] == 1
        assert not columns["discrete_penalty"].any()


@pytest.mark.parametrize("compose_base", [False, True])
def test_random_warm_up_draws_the_grippers_choices(compose_base):
    env, streams = gripper_streams(
        GripperEnv(0.0, 0.5), Commanding([0.1]), base_only=True, compose_base=compose_base
    )
    finished, _ = play(env, streams, 10 * (LENGTH + 1), base_only=True, random_actions=True)
    actions = np.concatenate([columns["action"][:-1] for columns in finished.columns])
    labels = np.concatenate([columns["discrete_action"][:-1] for columns in finished.columns])
    held = 0.1 if compose_base else 0.25
    for label, command in ((OPEN, 0.0), (HOLD, held), (CLOSE, 0.5)):
        np.testing.assert_allclose(actions[labels == label, GRIPPER], command)
        assert 0.2 < (labels == label).mean() < 0.5
    assert actions[:, :2].std(0).min() > 0.4  # uniform in [-1, 1]: 0.58


def test_two_grippers_are_labelled_and_charged_each():
    params = ResidualSACParams(gripper="discrete", gripper_dims=[2, 0], grasp_penalty=1.0,
                               compose_base=False)  # fmt: skip
    record = GripperRecord(params, np.float32([-1, -1, 0]), np.float32([1, 1, 2]), 2)
    action = np.float32([[1, 0, 0], [-1, 0, 1]])  # (open, close) and (hold, open)
    columns = record.columns(action, np.zeros_like(action), np.array([-1, -1]), np.ones(2, bool))
    assert columns["discrete_action"].tolist() == [OPEN + 3 * CLOSE, HOLD + 3 * OPEN]
    assert columns["discrete_penalty"].tolist() == [-1, 0]
    action = np.float32([[-1, 0, 2], [0, 0, 2]])  # (close, open), which the critic calls 8
    columns = record.columns(action, np.zeros_like(action), np.array([8, -1]), np.ones(2, bool))
    assert columns["discrete_action"].tolist() == [8, CLOSE + 3 * HOLD]
    assert columns["discrete_penalty"].tolist() == [-2, -1]


def gripper_record(**params):
    """Of two environments, whose only dimension is a gripper."""
    params = ResidualSACParams(gripper="discrete", gripper_dims=[0], grasp_penalty=1.0, **params)
    return GripperRecord(params, np.float32([-1]), np.float32([1]), 2)


def test_an_episode_begins_with_the_gripper_of_its_own_environment_open():
    record, stepped = gripper_record(compose_base=False), np.ones(2, bool)
    close, nobody = np.ones((2, 1), np.float32), np.array([-1, -1])
    for penalties in ([-1, -1], [0, 0], [-1, 0]):
        columns = record.columns(close, np.zeros_like(close), nobody, stepped)
        assert columns["discrete_penalty"].tolist() == penalties
        if penalties == [0, 0]:
            record.reset(0)


def test_a_command_that_is_ignored_neither_opens_nor_closes_a_gripper():
    record, nobody = gripper_record(compose_base=False), np.array([-1, -1])
    for command, stepped, penalties in (
        (1, True, [-1, -1]),
        (-1, False, [0, 0]),
        (1, True, [0, 0]),
    ):
        action = np.full((2, 1), command, np.float32)
        columns = record.columns(action, np.zeros_like(action), nobody, np.full(2, stepped))
        assert columns["discrete_penalty"].tolist() == penalties


def test_every_choice_of_the_critic_is_kept_even_where_it_says_what_the_base_does():
    record, opened = gripper_record(), -np.ones((2, 1), np.float32)
    for choice in (OPEN, HOLD):
        columns = record.columns(opened, opened, np.array([choice, -1]), np.ones(2, bool))
        assert columns["discrete_action"].tolist() == [choice, HOLD]


def test_probing_takes_any_number_of_steps_up_to_the_last():
    env, streams = open_streams([lambda: CountingEnv(4)], probe_steps=1)
    finished, _ = play(env, streams, 100)
    assert {summary.probe_steps for summary in finished.summaries} == {0, 1}
