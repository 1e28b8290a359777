"""The scripted expert solves each task, and its perception errs as it is told."""

from __future__ import annotations

import numpy as np
import pytest

from envs import LiberoEnv
from envs.demonstrator import Demonstrator, find_grasp
from envs.evaluate_expert import evaluate, main
from envs.experts import Perception, PickPlaceExpert
from envs.pld_tabletop import SUITE, TASKS
from pld_ray.rollout.scripted_person import PROGRESS


@pytest.mark.parametrize("task", TASKS)
def test_the_unbiased_expert_solves_every_task(task):
    env = LiberoEnv(SUITE, task)
    score = evaluate(env, Perception(), gain=2.0, episodes=5)
    assert score.success_rate == 1.0  # 100 of 100 when all stored states are played
    assert score.mean_steps < 130
    env.close()


@pytest.mark.parametrize("task", TASKS)
def test_what_is_left_to_go_shrinks_in_every_phase(task):
    """Also while the object rises or is let down, and comes no nearer in the plane."""
    env = LiberoEnv(SUITE, task)
    env.reset(options={"init_state_id": 1})
    demonstrator = Demonstrator(env, Perception())
    best, waited, longest, over = np.inf, 0, 0, False
    while not over:
        left, waited = demonstrator.remaining(), waited + 1
        if left < best - PROGRESS:
            best, waited = left, 0
        longest = max(longest, waited)
        *_, terminated, truncated, info = env.step(demonstrator.act())
        over = terminated or truncated
    env.close()
    assert info["is_success"]
    assert longest < 12  # the gripper shuts


@pytest.mark.parametrize("thing", ["milk", "orange_juice", "butter", "bbq_sauce"])
def test_the_demonstrator_takes_things_of_libero_to_the_basket(libero_assets, thing):
    """Believing that it holds nothing, it would let go of LIBERO's wide milk carton."""
    env = LiberoEnv(
        "libero_object", f"pick_up_the_{thing}_and_place_it_in_the_basket", assets=libero_assets
    )
    env.reset(options={"init_state_id": 1})
    demonstrator, over = Demonstrator(env, Perception()), False
    while not over:
        *_, terminated, truncated, info = env.step(demonstrator.act())
        over = terminated or truncated
    env.close()
    assert info["is_success"]


def test_a_grasp_is_found_by_all_of_its_words():
    milk, carton = find_grasp("pick_up_the_milk_and_place_it_in_the_bin"), 0.053
    assert find_grasp("pick_up_the_milk_and_place_it_in_the_basket").opening == carton
    assert milk.opening < carton - 0.006  # so the one does not do for the other
    with pytest.raises(ValueError, match="add its object to GRASPS"):
        find_grasp("open_the_top_drawer")


def test_success_falls_with_the_bias(env):
    rates = [
        evaluate(env, Perception(bias_std=std), episodes=6, seed=1).success_rate
        for std in (0.0, 0.06)
    ]
    assert rates[0] == 1.0
    assert rates[1] <= 0.5


def test_perception_is_the_stated_map():
    xy, center = np.array([0.08, -0.04]), np.array([-0.04, -0.12])
    np.testing.assert_allclose(Perception().see(xy, center, np.zeros(2)), xy)
    scaled = Perception(scale_error=0.5).see(xy, center, np.zeros(2))
    np.testing.assert_allclose(scaled - center, 1.5 * (xy - center))
    quarter = Perception(angle=np.pi / 2).see(xy, center, np.array([0.01, 0.0]))
    np.testing.assert_allclose(quarter, [center[0] - 0.08 + 0.01, center[1] + 0.12])


def test_the_same_generator_gives_the_same_actions(env):
    def actions(seed):
        expert = PickPlaceExpert(env, perception=Perception(bias_std=0.02), action_noise=0.3)
        env.reset(options={"init_state_id": 3})
        expert.reset(np.random.default_rng(seed))
        taken = []
        for _ in range(30):
            taken.append(expert.act())
            env.step(taken[-1])
        return np.array(taken)

    first = actions(0)
    assert first.dtype == np.float32
    assert np.abs(first).max() <= 1.0
    np.testing.assert_array_equal(first, actions(0))
    assert not np.array_equal(first, actions(1))


def test_an_expert_must_look_first(env):
    with pytest.raises(RuntimeError, match="reset"):
        PickPlaceExpert(env).act()


def test_the_command_prints_a_line_per_setting(capsys):
    main(["--task", "lift_the_can", "--episodes", "2", "--bias-std", "0", "0.3"])
    lines = capsys.readouterr().out.splitlines()
    assert "success 1.00 of 2" in lines[0]
    assert "success 0.00 of 2" in lines[1]
