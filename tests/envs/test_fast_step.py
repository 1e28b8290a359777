"""The fast step must be LIBERO's own step, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from envs import LiberoEnv
from envs.experts import PickPlaceExpert
from envs.pld_tabletop import SUITE


@pytest.mark.parametrize(("task", "episodes"), [(1, 4), (2, 1)], ids=["can", "milk"])
def test_physics_rewards_and_observations_are_bit_identical_to_the_stock_step(task, episodes):
    fast = LiberoEnv(SUITE, task)
    stock = LiberoEnv(SUITE, task, fast_step=False)
    expert = PickPlaceExpert(fast, gain=3.0)
    rng = np.random.default_rng(task)
    successes = steps = 0
    for episode in range(episodes):
        seen = [env.reset(seed=10 + episode)[0] for env in (fast, stock)]
        _assert_same_bits(seen[0], seen[1])
        expert.reset(rng)
        for _ in range(130):
            by_expert = episode % 2 == 0
            action = expert.act() if by_expert else rng.uniform(-1, 1, 7).astype(np.float32)
            results = [env.step(action) for env in (fast, stock)]
            _assert_same_bits(results[0][0], results[1][0])
            assert results[0][1:] == results[1][1:]  # reward, terminated, truncated, info
            assert fast.flat_state().tobytes() == stock.flat_state().tobytes()  # time, qpos, qvel
            steps += 1
            if results[0][2]:
                successes += 1
                break
    assert successes == (episodes + 1) // 2  # the expert's episodes
    assert steps > 70 * episodes
    fast.close()
    stock.close()


def test_observation_equals_what_libero_itself_observes():
    """Our arrays against the observables of a stock step, which our code takes no part in."""
    env = LiberoEnv(fast_step=False)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        observation = env.step(rng.uniform(-1, 1, 7))[0]
    libero = env._env._get_observations()
    eef, can, bin_ = (libero[f"{k}_pos"] for k in ("robot0_eef", "pld_can_1", "pld_bin_1"))
    x, y, z, w = libero["pld_can_1_quat"]
    upright = np.array([w, x, y, z]) * (1 if w >= 0 else -1)
    expected = np.concatenate(
        [can - eef, np.tanh(40 * (can - eef)), upright, bin_ - eef, bin_ - can, can, np.eye(5)[1]]
    )
    state = observation["observation.environment_state"]
    np.testing.assert_array_equal(state, expected.astype(np.float32))
    robot = observation["observation.state"]
    np.testing.assert_array_equal(robot[:3], eef.astype(np.float32))
    np.testing.assert_array_equal(robot[6:], libero["robot0_gripper_qpos"].astype(np.float32))
    np.testing.assert_allclose(robot[3:6], _lerobot_axis_angle(libero), atol=2e-5)
    env.close()


def test_fast_step_refuses_what_it_was_not_written_for(env, monkeypatch):
    from envs.fast_step import FastStep

    env.reset(seed=0)
    monkeypatch.setattr(env._env, "hard_reset", True)
    monkeypatch.setattr(env._env.robots[0].controller, "uncoupling", False)
    with pytest.raises(ValueError, match=r"coupled position and orientation, hard resets.*False"):
        FastStep(env._env)


def _lerobot_axis_angle(libero_observation):
    torch = pytest.importorskip("torch")
    from lerobot.processor.env_processor import LiberoProcessorStep

    quat = torch.tensor(libero_observation["robot0_eef_quat"][None])
    return LiberoProcessorStep()._quat2axisangle(quat)[0].numpy()


def _assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for key in left:
        assert left[key].tobytes() == right[key].tobytes(), key
