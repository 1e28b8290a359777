"""With beta = 0 a run is the base policy, bit for bit, wherever the policy is placed."""

from __future__ import annotations

import numpy as np
import pytest
from update_fixtures import PLAIN

import envs
from pld_ray.policies import load_base_policy
from pld_ray.rllib import ResidualSACConfig
from pld_ray.rollout.messages import SampleRequest

EPISODES = 20
ENV = {"task": "lift_the_can", "episode_length": 40}


pytestmark = pytest.mark.usefixtures("ray_cluster")


def base_policy_alone(init_state_ids):
    """The reference: the environment and the policy's chunks, with nothing of ours between."""
    policy = load_base_policy()
    env = envs.LiberoEnv(**ENV)
    episodes = []
    for init_state_id in init_state_ids:
        observation, info = env.reset(options={"init_state_id": init_state_id})
        actions, done = [], False
        while not done:
            if len(actions) % policy.n_action_steps == 0:
                batch = {key: value[None] for key, value in observation.items()}
                chunk = policy.infer(batch, [info["task"]], [0]).chunks[0]
            action = np.clip(chunk[len(actions) % policy.n_action_steps], -1, 1)
            observation, _, terminated, truncated, info = env.step(action)
            actions.append(action)
            done = terminated or truncated
        episodes.append((np.stack(actions), observation["observation.state"]))
    env.close()
    return episodes


@pytest.fixture(scope="module")
def reference():
    return base_policy_alone(range(EPISODES))


@pytest.mark.parametrize("placement", ["inline", pytest.param("pool", marks=pytest.mark.chaos)])
def test_zero_residual_scale_executes_the_base_policy_bit_for_bit(placement, reference):
    config = (
        ResidualSACConfig()
        .environment(env_config=ENV)
        .base_policy(placement=placement)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(
            **PLAIN, residual_scale=0.0, offline_episodes=0, use_probing=False, hidden_dims=[8]
        )
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    try:
        # an actor that would do something: beta alone must keep it out
        (result,) = algorithm.learner_group.foreach_learner(lambda learner: learner)
        networks = result.get().networks
        for parameter in networks.actor.parameters():
            parameter.data.uniform_(-1, 1)
        algorithm.learners.set_residual_scale(0.0)
        algorithm.runners.publish(algorithm.learners)
        runner = algorithm.env_runner
        runner.env.unwrapped.set_init_states(range(EPISODES))
        columns, lengths = {}, []
        while len(lengths) < EPISODES:
            batch = runner.sample_episodes(SampleRequest(50))
            for key, value in batch.columns.items():
                columns.setdefault(key, []).append(value)
            lengths += batch.episode_lengths
        columns = {key: np.concatenate(value) for key, value in columns.items()}
        played = {}
        start = 0
        for length in lengths:
            rows = slice(start, start + length)
            np.testing.assert_array_equal(columns["action"][rows], columns["base_action"][rows])
            actions = columns["action"][rows]
            played[actions.tobytes()] = columns["observation.state"][start + length]
            start += length + 1
        for actions, final_state in reference:  # two environments finish in any order
            assert actions.tobytes() in played, "an episode differs from the base policy's"
            np.testing.assert_array_equal(played[actions.tobytes()], final_state)
        rows = algorithm.evaluate_residual([3, 5])
        assert [row.length for row in rows] == [len(reference[3][0]), len(reference[5][0])]
    finally:
        algorithm.stop()
