"""LIBERO's suites: their tables, their environment states, their pictures and their expert."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs import LiberoEnv, bootstrap
from envs.entities import LAYOUTS
from envs.evaluate_expert import evaluate
from envs.experts import Perception, PickPlaceExpert
from envs.init_states import load_init_states
from envs.suites import find_task

REAL_SUITES = list(LAYOUTS)


@pytest.mark.parametrize("suite", REAL_SUITES)
def test_tasks_instructions_and_files_are_those_of_liberos_benchmark(suite):
    bootstrap.import_libero()
    from libero.libero import benchmark

    theirs = benchmark.get_benchmark(suite)()
    assert envs.suite_tasks(suite) == theirs.get_task_names()
    for index, task in enumerate(theirs.tasks):
        spec = find_task(suite, task.name)
        assert (spec.index, spec.language) == (index, task.language)
        assert spec.bddl_file.samefile(theirs.get_task_bddl_file_path(index))
        assert find_task(suite, str(index)) == find_task(suite, index) == spec
    states = load_init_states(spec.init_states_file)
    np.testing.assert_array_equal(states, theirs.get_task_init_states(index))


def test_horizons_are_lerobots():
    bootstrap.import_libero()
    from lerobot.envs.libero import TASK_SUITE_MAX_STEPS

    assert {s: find_task(s).horizon for s in REAL_SUITES} == TASK_SUITE_MAX_STEPS


@pytest.mark.parametrize(
    ("suite", "size"),
    [
        ("libero_spatial", 36),
        ("libero_object", 36),
        ("libero_goal", 37),
        ("libero_10", 63),
        ("libero_90", 131),
    ],
)
def test_every_task_of_a_suite_fits_its_environment_state(suite, size):
    bootstrap.import_libero()
    from libero.libero.envs.bddl_utils import robosuite_parse_problem

    layout = LAYOUTS[suite]
    assert layout.size == size
    assert layout.tasks == len(envs.suite_tasks(suite))
    for task in envs.suite_tasks(suite):
        problem = robosuite_parse_problem(str(find_task(suite, task).bddl_file))
        known = [*problem["regions"]]
        for names in [*problem["objects"].values(), *problem["fixtures"].values()]:
            known += names
        assert 1 <= len(problem["obj_of_interest"]) <= layout.entities
        assert set(problem["obj_of_interest"]) <= set(known)
    env = LiberoEnv(suite)
    assert env.observation_space["observation.environment_state"].shape == (size,)


@pytest.mark.usefixtures("libero_assets")
def test_environment_state_equals_what_libero_itself_observes():
    """Two objects: our arrays against the observables of a stock step."""
    env = LiberoEnv("libero_object", 3, fast_step=False)
    env.reset(options={"init_state_id": 0})
    rng = np.random.default_rng(0)
    for _ in range(5):
        observation, *_ = env.step(rng.uniform(-1, 1, 7))
    libero = env._env._get_observations()
    eef, sauce, basket = (libero[f"{k}_pos"] for k in ("robot0_eef", "bbq_sauce_1", "basket_1"))
    slots = []
    for name in ("bbq_sauce_1", "basket_1"):
        x, y, z, w = libero[f"{name}_quat"]
        reach = libero[f"{name}_pos"] - eef
        quat = np.array([w, x, y, z]) * (1 if w >= 0 else -1)
        slots += [reach, np.tanh(40 * reach), quat]
    expected = np.concatenate([*slots, sauce, basket - sauce, np.eye(10)[3]])
    state = observation["observation.environment_state"]
    np.testing.assert_array_equal(state, expected.astype(np.float32))
    env.close()


@pytest.mark.usefixtures("libero_assets")
def test_fixtures_sites_and_joints_have_their_slots():
    env = LiberoEnv("libero_goal", "open_the_middle_drawer_of_the_cabinet")
    observation, _ = env.reset(options={"init_state_id": 0})
    state = observation["observation.environment_state"]
    site = env._env.sim.data.get_site_xpos("wooden_cabinet_1_middle_region")
    np.testing.assert_allclose(state[20:23], site, atol=1e-6)  # the drawer is the first thing
    assert not state[10:20].any()  # and there is no second one
    drawer = env._env.object_sites_dict["wooden_cabinet_1_middle_region"].joints[0]
    assert state[26] == 0.0
    env._env.sim.data.set_joint_qpos(drawer, -0.1)
    opened = env.step(np.zeros(7))[0]["observation.environment_state"]
    assert opened[26] == pytest.approx(-0.1, abs=0.02)
    assert np.linalg.norm(opened[20:23] - state[20:23]) == pytest.approx(0.1, abs=0.02)
    env.close()


@pytest.mark.usefixtures("libero_assets")
def test_a_stored_start_is_the_same_whatever_came_before():
    env = LiberoEnv("libero_spatial", 4)
    start = {"init_state_id": 5}
    first, _ = env.reset(options=start)
    pose = env._env.sim.model.body_pos.copy()
    env.reset(seed=123)
    env.step(np.ones(7))
    again, _ = env.reset(options=start)
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
    np.testing.assert_array_equal(pose, env._env.sim.model.body_pos)
    env.reset(seed=123, options=start)
    assert not np.array_equal(pose, env._env.sim.model.body_pos)  # a seed moves the fixtures
    env.close()


@pytest.mark.usefixtures("libero_assets")
def test_stock_and_fast_step_agree():
    fast = LiberoEnv("libero_spatial", 7)
    stock = LiberoEnv("libero_spatial", 7, fast_step=False)
    expert = PickPlaceExpert(fast)
    for options in ({"init_state_id": 1}, None):
        seen = [env.reset(seed=4, options=options)[0] for env in (fast, stock)]
        expert.reset(np.random.default_rng(0))
        for _ in range(40):
            for key in seen[0]:
                np.testing.assert_array_equal(seen[0][key], seen[1][key])
            action = expert.act()
            seen = [env.step(action)[0] for env in (fast, stock)]
    assert fast.flat_state().tobytes() == stock.flat_state().tobytes()
    fast.close()
    stock.close()


@pytest.mark.usefixtures("libero_assets", "graphics")
def test_fast_rendering_shows_the_same_scene():
    pictures = {}
    for rendering in ("reference", "fast"):
        env = LiberoEnv("libero_object", 0, cameras="image", image_size=64, rendering=rendering)
        pictures[rendering] = env.reset(options={"init_state_id": 0})[0]["observation.images.image"]
        env.close()
    difference = np.abs(pictures["fast"].astype(int) - pictures["reference"])
    assert difference.any()
    assert difference.mean() < 12  # of 255
    shades = [picture.mean(axis=2).ravel() for picture in pictures.values()]
    assert np.corrcoef(*shades)[0, 1] > 0.9


@pytest.mark.usefixtures("libero_assets")
@pytest.mark.parametrize(
    ("suite", "task"), [("libero_object", 4), ("libero_spatial", 3)], ids=["bottle", "bowl"]
)
def test_the_expert_solves_and_a_wrong_look_fails(suite, task):
    env = LiberoEnv(suite, task)
    assert evaluate(env, Perception(), episodes=3).success_rate == 1.0
    assert evaluate(env, Perception(offset=(0.0, 0.15)), episodes=1).success_rate == 0.0
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": 10}, "Task 10.*from 0 to 9"),
        ({"task": "pick_up_the_milk"}, "Did you mean"),
        ({"rendering": "quick"}, "rendering must be one of"),
        ({"control_mode": "delta"}, "control_mode must be one of"),
    ],
)
def test_wrong_arguments_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        LiberoEnv("libero_object", **settings)
