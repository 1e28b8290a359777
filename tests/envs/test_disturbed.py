"""`DisturbedEnv`: each disturbance is what it says, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from envs.disturbed import DisturbedEnv, outside
from envs.libero import LiberoEnv

REGION = (-0.12, -0.20, 0.04, -0.04)
"""Where the can starts: pick_up_the_can_and_place_it_in_the_bin.bddl."""
ENVIRONMENT_STATE = "observation.environment_state"


def episode(env: LiberoEnv, steps: int, init_state: int = 3) -> np.ndarray:
    """Environment states [steps + 1, 24] of an arm that moves to one side."""
    observation, _ = env.reset(options={"init_state_id": init_state})
    action = np.array([0.0, 0.4, 0.0, 0.0, 0.0, 0.0, -1.0], np.float32)
    seen = [observation[ENVIRONMENT_STATE]]
    seen += [env.step(action)[0][ENVIRONMENT_STATE] for _ in range(steps)]
    return np.stack(seen)


@pytest.fixture(scope="module")
def undisturbed(env):
    return episode(env, 6)


@pytest.mark.parametrize(
    ("side", "expected"),
    [(0, (-0.13, -0.1)), (1, (-0.05, -0.21)), (2, (0.05, -0.1)), (3, (-0.05, -0.03))],
)
def test_a_place_is_moved_beyond_one_side(side, expected):
    moved = outside(REGION, np.array([-0.05, -0.1]), 0.01, side)
    np.testing.assert_allclose(moved, expected)


def test_nothing_disturbs_by_default(undisturbed):
    env = DisturbedEnv()
    np.testing.assert_array_equal(episode(env, 6), undisturbed)
    env.close()


def test_the_target_stands_outside_its_region_at_the_same_place_each_time():
    env = DisturbedEnv(displacement=0.02)
    sides = set()
    for state in range(6):
        env.reset(options={"init_state_id": state})
        x, y = env.expert_view()["target_pos"][:2]
        beyond = (REGION[0] - x, REGION[1] - y, x - REGION[2], y - REGION[3])
        sides.add(int(np.argmax(beyond)))
        assert max(beyond) == pytest.approx(0.02, abs=1e-3)
        env.reset(options={"init_state_id": state})
        np.testing.assert_array_equal(env.expert_view()["target_pos"][:2], [x, y])
    assert len(sides) > 1
    env.close()


def test_an_action_arrives_late(undisturbed):
    env = DisturbedEnv(delay=2)
    delayed = episode(env, 6)
    np.testing.assert_allclose(delayed[2, :3], undisturbed[0, :3], atol=2e-3)
    moved, moved_late = undisturbed[-1, 1] - undisturbed[0, 1], delayed[-1, 1] - delayed[0, 1]
    assert abs(moved_late) < 0.75 * abs(moved)
    env.close()


def test_an_action_that_waits_is_no_pose():
    with pytest.raises(ValueError, match="delay needs control_mode='relative'"):
        DisturbedEnv(delay=2, control_mode="absolute")


def test_noise_moves_only_the_dimensions_named():
    env = DisturbedEnv(action_noise=0.05, noisy_dims=(0,), seed=1)
    env.reset(options={"init_state_id": 0})
    given = []
    advance = env._advance
    env._advance = lambda command, *rest: given.append(command) or advance(command, *rest)
    for _ in range(200):
        env.step(np.zeros(7, np.float32))
    noise = np.stack(given)
    assert not noise[:, 1:].any()
    assert noise[:, 0].std() == pytest.approx(0.05 * 2, rel=0.15)  # of a range from -1 to 1
    env.close()


def test_the_target_is_seen_beside_its_place_and_stands_where_it_was(undisturbed):
    env = DisturbedEnv(perception_noise=0.003)
    seen = episode(env, 60)
    error = seen[:, 16:19] - env.expert_view()["target_pos"]
    assert error.std() == pytest.approx(0.003, rel=0.2)
    np.testing.assert_array_equal(seen[:7, 10:13], undisturbed[:, 10:13])  # goal, hand: as they are
    np.testing.assert_array_equal(episode(env, 60), seen)
    env.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"displacement": -0.01}, "displacement must be 0 or more"),
        ({"action_noise": float("nan")}, "action_noise must be 0 or more"),
        ({"noisy_dims": (7,)}, "dimensions 0 to 6"),
    ],
)
def test_a_number_out_of_range_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        DisturbedEnv(**arguments)
