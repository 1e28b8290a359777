"""`LiberoEnv` as a gymnasium environment: API, seeds, init states, errors."""

# ruff: noqa: NPY002  the global state is looked at on purpose
from __future__ import annotations

import json
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envs
from envs import LiberoEnv
from envs.experts import PickPlaceExpert
from envs.pld_tabletop import SUITE, TASKS

FIRST_OBSERVATION = """
import json, sys
from envs import LiberoEnv
env = LiberoEnv()
observation, info = env.reset(options={"init_state_id": int(sys.argv[1])})
print(json.dumps({key: value.tobytes().hex() for key, value in observation.items()}))
"""


def test_gymnasium_env_checker_passes():
    env = gym.make("pld_tabletop/PickUpTheCanAndPlaceItInTheBin-v0").unwrapped
    check_env(env, skip_render_check=True)
    env.close()


def test_every_task_is_registered_runs_and_is_described_as_in_its_bddl():
    for index, task in enumerate(TASKS):
        camel = "".join(word.capitalize() for word in task.split("_"))
        env = gym.make(f"pld_tabletop/{camel}-v0", disable_env_checker=True).unwrapped
        observation, info = env.reset(options={"init_state_id": 99})
        assert env.observation_space.contains(observation)
        one_hot = observation["observation.environment_state"][19:]
        np.testing.assert_array_equal(one_hot, np.eye(5, dtype=np.float32)[index])
        assert info == {
            "is_success": False,
            "task": " ".join(env._env.parsed_problem["language_instruction"]),
            "task_id": index,
            "init_state_id": 99,
        }
        assert (env.task_name, env.task_description) == (task, info["task"])
        assert env.num_init_states == 150
        env.close()


def test_without_environment_state_the_rest_is_as_it_was(env):
    blind = LiberoEnv(environment_state=False)
    assert set(blind.observation_space) == {"observation.state"}
    action = np.array([0.3, -0.2, 0.1, 0.0, 0.0, 0.0, 1.0], np.float32)
    for one in (blind, env):
        one.reset(options={"init_state_id": 5})
    for _ in range(5):
        seen, known = blind.step(action)[0], env.step(action)[0]
        assert blind.observation_space.contains(seen)
        np.testing.assert_array_equal(seen["observation.state"], known["observation.state"])
    blind.close()


def test_success_gives_one_reward_and_terminates(env):
    expert = PickPlaceExpert(env)
    env.reset(options={"init_state_id": 0})
    expert.reset(np.random.default_rng(0))
    rewards, terminated = [], False
    while not terminated and len(rewards) < 200:
        _, reward, terminated, truncated, info = env.step(expert.act())
        assert info["is_success"] == terminated
        assert not truncated
        rewards.append(reward)
    assert terminated
    assert rewards[-1] == 1.0
    assert sum(rewards) == 1.0


def test_truncation_at_the_episode_length():
    env = LiberoEnv(episode_length=4)
    for _ in range(2):
        env.reset(seed=0)
        flags = [env.step(np.zeros(7, np.float32))[2:4] for _ in range(4)]
        assert flags == [(False, False)] * 3 + [(False, True)]
    env.close()


def _tilt(env, degrees, rise):
    """Put the target `rise` metres above where it stands, tilted; the flags of the step after."""
    env.reset(options={"init_state_id": 0})
    data = env._env.sim.data
    joint = env._env.objects_dict[env.expert_view()["target"]].joints[-1]
    pose = data.get_joint_qpos(joint)
    pose[2] += rise  # it falls by 1 cm during the step, and turns no further
    pose[3:] = [np.cos(np.radians(degrees / 2)), np.sin(np.radians(degrees / 2)), 0, 0]
    data.set_joint_qpos(joint, pose)
    _, reward, terminated, truncated, info = env.step(np.zeros(7, np.float32))
    assert (reward, truncated, info["is_success"]) == (0.0, False, False)
    return terminated


@pytest.mark.parametrize("task", TASKS)
def test_a_target_that_lies_terminates_without_reward_where_that_is_asked_for(task):
    env, patient = LiberoEnv(task=task, terminate_when_toppled=True), LiberoEnv(task=task)
    assert _tilt(env, 65, rise=0.02)
    assert not _tilt(env, 55, rise=0.02)
    assert not _tilt(env, 65, rise=0.05)  # held, or on its way into the bin
    assert not _tilt(patient, 65, rise=0.02)
    env.close()
    patient.close()


def test_same_seed_same_trajectory_and_another_seed_another_one(env):
    other = LiberoEnv()
    first, second, third = (_trajectory(e, seed) for e, seed in ((env, 5), (other, 5), (env, 6)))
    assert first == second
    assert first != third
    other.close()


def test_an_unseeded_reset_goes_on_with_the_generator(env):
    env.reset(seed=1)
    continued = [_place(env) for _ in range(2)]
    env.reset(seed=1)
    assert continued == [_place(env) for _ in range(2)]
    assert continued[0] != continued[1]


def test_global_numpy_state_is_neither_read_nor_changed():
    np.random.seed(123)
    before = pickle.dumps(np.random.get_state())
    env = LiberoEnv()
    first = _trajectory(env, seed=4)
    assert pickle.dumps(np.random.get_state()) == before
    np.random.seed(321)
    assert _trajectory(env, seed=4) == first
    env.close()


def test_init_state_is_the_same_in_a_fresh_process_and_after_other_episodes(env):
    """Nothing leaks through a soft reset: solver warm start, controller goal, gripper command."""
    rng = np.random.default_rng(0)
    expert = PickPlaceExpert(env)
    env.reset(seed=11)
    expert.reset(rng)
    for _ in range(40):  # in the middle of a grasp
        env.step(expert.act())
    dirty, _ = env.reset(options={"init_state_id": 7})
    fresh = subprocess.run(
        [sys.executable, "-c", FIRST_OBSERVATION, "7"], capture_output=True, text=True, check=True
    )
    expected = json.loads(fresh.stdout)
    assert {key: value.tobytes().hex() for key, value in dirty.items()} == expected
    other, _ = env.reset(options={"init_state_id": 8})
    assert not np.array_equal(other["observation.state"], dirty["observation.state"]) or (
        not np.array_equal(
            other["observation.environment_state"], dirty["observation.environment_state"]
        )
    )


def test_an_instance_travels_to_another_process_before_its_first_reset(env):
    twin = pickle.loads(pickle.dumps(LiberoEnv(SUITE, "lift_the_can", episode_length=9)))
    assert (twin.task_name, twin.episode_length) == ("lift_the_can", 9)
    observation, _ = twin.reset(seed=0)
    assert twin.observation_space.contains(observation)
    twin.close()


def test_closing_and_resetting_builds_anew():
    env = LiberoEnv()
    first = _trajectory(env, seed=2)
    env.close()
    assert _trajectory(env, seed=2) == first
    env.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LiberoEnv("pld_tabeltop"), "Unknown suite 'pld_tabeltop'.*'pld_tabletop'"),
        (lambda: LiberoEnv(SUITE, "lift_a_can"), "Unknown task 'lift_a_can'.*'lift_the_can'"),
        (lambda: LiberoEnv(SUITE, 5), "Task 5.*from 0 to 4"),
        (lambda: LiberoEnv(cameras=("agentview",)), "Unknown cameras.*image2"),
        (lambda: LiberoEnv(episode_length=0), "episode_length must be positive"),
        (
            lambda: LiberoEnv("libero_goal", terminate_when_toppled=True),
            "terminate_when_toppled is for pld_tabletop",
        ),
        (lambda: LiberoEnv(image_size=0), "image_size must be positive"),
        (lambda: LiberoEnv(render_mode="human"), "render_mode"),
        (lambda: envs.suite_tasks("libero"), "Unknown suite 'libero'"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_resets_and_actions_are_named(env):
    with pytest.raises(ValueError, match="init_state_id 150: 0 to 149"):
        env.reset(options={"init_state_id": 150})
    with pytest.raises(ValueError, match="init_state_id -1"):
        env.reset(options={"init_state_id": -1})
    with pytest.raises(ValueError, match=r"Unknown reset options.*init_state'"):
        env.reset(options={"init_state": 1})
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape \(7,\), not \(6,\)"):
        env.step(np.zeros(6))
    with pytest.raises(ValueError, match="finite"):
        env.step(np.full(7, np.nan))
    with pytest.raises(RuntimeError, match="reset"):
        LiberoEnv().step(np.zeros(7))


def _place(env):
    observation, info = env.reset()
    assert info["init_state_id"] == -1
    return observation["observation.environment_state"].tobytes()


def _trajectory(env, seed):
    observation, _ = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    parts = [observation[key].tobytes() for key in sorted(observation)]
    for _ in range(15):
        observation, *_ = env.step(rng.uniform(-1, 1, 7))
        parts += [observation[key].tobytes() for key in sorted(observation)]
    return [*parts, env.flat_state().tobytes()]


def test_our_environment_type_shows_what_ours_does_without_environment_state():
    from envs.lerobot_env import PldRayEnv

    config = PldRayEnv(environment_state=False, render=False)
    assert set(config.features) == {"action", "agent_pos"}
    (made,) = config.create_envs(n_envs=1)["pld_tabletop"].values()
    observation, _ = made.reset()
    assert set(observation) == {"agent_pos"}
    own = LiberoEnv(environment_state=False).reset(options={"init_state_id": 0})[0]
    np.testing.assert_array_equal(observation["agent_pos"][0], own["observation.state"])
    made.close()
