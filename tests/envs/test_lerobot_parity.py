"""Our `LiberoEnv` against LeRobot's on LIBERO's four suites of ten tasks, byte for byte.

LeRobot's environment renders at every step and rebuilds its simulation at every reset. Where only
states are compared it is given LIBERO's environment without a renderer, which is otherwise the same
code.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from envs import LiberoEnv, bootstrap
from envs.assets import ASSETS_VARIABLE
from envs.experts import PickPlaceExpert

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
SEED = 11
INIT_STATE = 3
CAMERAS = ("image", "image2")

pytestmark = pytest.mark.usefixtures("libero_assets")


@functools.cache
def lerobot():
    """LeRobot's module, imported where LIBERO neither asks nor downloads."""
    bootstrap.import_libero()
    bootstrap.use_assets(Path(os.environ[ASSETS_VARIABLE]))
    import lerobot.envs.libero

    return lerobot.envs.libero


@functools.cache
def lerobot_suite(suite):
    return lerobot()._get_suite(suite)


def make_lerobot_env(monkeypatch, suite, task, images=False, **kwargs):
    module = lerobot()
    env = module.LiberoEnv(
        lerobot_suite(suite),
        task,
        suite,
        obs_type="pixels_agent_pos",
        observation_width=48,
        observation_height=48,
        episode_index=INIT_STATE,
        **kwargs,
    )
    if images:
        bootstrap.enable_rendering()
    else:
        from libero.libero.envs.env_wrapper import ControlEnv

        def without_renderer(camera_heights, camera_widths, **settings):
            return ControlEnv(use_camera_obs=False, has_offscreen_renderer=False, **settings)

        monkeypatch.setattr(module, "OffScreenRenderEnv", without_renderer)
        env.camera_name = []
    return env


def processed(observation):
    """What a policy gets from LeRobot: its own preprocessing, then its LIBERO processor."""
    from lerobot.envs.utils import preprocess_observation
    from lerobot.processor.env_processor import LiberoProcessorStep

    batch = preprocess_observation(_batched(observation))
    return LiberoProcessorStep().observation(batch)


def _batched(nested):
    return {k: _batched(v) if isinstance(v, dict) else v[None] for k, v in nested.items()}


def assert_same_observation(ours, theirs, cameras=()):
    theirs = processed(theirs)
    state = theirs["observation.state"][0].numpy()
    assert state.dtype == ours["observation.state"].dtype == np.float32
    assert state.tobytes() == ours["observation.state"].tobytes()
    for name in cameras:
        picture = theirs[f"observation.images.{name}"][0].permute(1, 2, 0) * 255
        picture = picture.round().to(torch.uint8).numpy()
        np.testing.assert_array_equal(ours[f"observation.images.{name}"], picture)


def play_both(ours, theirs, actions, cameras=()):
    """Apply `actions` to the two; assert that nothing differs; return the success of the last."""
    success = False
    for action in actions:
        seen, reward, terminated, _, info = ours.step(action)
        expected, their_reward, their_end, _, their_info = theirs.step(action)
        assert_same_observation(seen, expected, cameras)
        assert (reward, terminated) == (their_reward, their_end)
        success = info["is_success"]
        assert success == their_info["is_success"]
    assert ours.flat_state().tobytes() == theirs._env.get_sim_state().tobytes()
    return success


def random_actions(count, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)


@pytest.mark.parametrize("suite", SUITES)
def test_states_rewards_and_resets_of_all_ten_tasks(monkeypatch, suite):
    for task in range(10):
        theirs = make_lerobot_env(monkeypatch, suite, task)
        ours = LiberoEnv(suite, task)
        expected, _ = theirs.reset(seed=SEED)
        seen, info = ours.reset(seed=SEED, options={"init_state_id": INIT_STATE})
        assert ours.task_description == info["task"] == theirs.task_description
        assert (ours.task_name, ours.episode_length) == (theirs.task, theirs._max_episode_steps)
        assert_same_observation(seen, expected)
        play_both(ours, theirs, random_actions(8))
        ours_model, their_model = ours._env.sim.model, theirs._env.env.sim.model
        np.testing.assert_array_equal(ours_model.body_pos, their_model.body_pos)  # fixtures
        np.testing.assert_array_equal(ours_model.body_quat, their_model.body_quat)
        ours.close()
        theirs.close()


@pytest.mark.usefixtures("graphics")
@pytest.mark.parametrize(
    ("suite", "task"),
    [("libero_spatial", 4), ("libero_object", 3), ("libero_goal", 9), ("libero_10", 2)],
)
def test_images_of_both_cameras(monkeypatch, suite, task):
    theirs = make_lerobot_env(monkeypatch, suite, task, images=True)
    ours = LiberoEnv(suite, task, cameras=CAMERAS, image_size=48)
    expected, _ = theirs.reset(seed=SEED)
    seen, _ = ours.reset(seed=SEED, options={"init_state_id": INIT_STATE})
    assert_same_observation(seen, expected, CAMERAS)
    play_both(ours, theirs, random_actions(3), CAMERAS)
    ours.close()
    theirs.close()


def test_a_whole_episode_up_to_success_and_the_one_after_it(monkeypatch):
    theirs = make_lerobot_env(monkeypatch, "libero_object", 3)
    ours = LiberoEnv("libero_object", 3)
    expert = PickPlaceExpert(ours)
    for episode in range(2):  # LeRobot goes on to the next stored state by itself
        expected, _ = theirs.reset(seed=SEED + episode)
        options = {"init_state_id": INIT_STATE + episode}
        seen, _ = ours.reset(seed=SEED + episode, options=options)
        assert_same_observation(seen, expected)
        expert.reset(np.random.default_rng(0))
        success = False
        for _ in range(130 if episode == 0 else 10):
            success = play_both(ours, theirs, [expert.act()])
            if success:
                break
        assert success == (episode == 0)
    ours.close()
    theirs.close()


def test_sampled_placements_with_things_on_and_in_fixtures(monkeypatch):
    for suite, task in (("libero_spatial", 4), ("libero_spatial", 7), ("libero_10", 3)):
        theirs = make_lerobot_env(monkeypatch, suite, task, init_states=False)
        ours = LiberoEnv(suite, task)
        ours.reset(seed=SEED + 1)  # an earlier episode must leave nothing behind
        expected, _ = theirs.reset(seed=SEED)
        seen, info = ours.reset(seed=SEED)
        assert info["init_state_id"] == -1
        assert_same_observation(seen, expected)
        play_both(ours, theirs, random_actions(5))
        ours.close()
        theirs.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_absolute_control(monkeypatch, dtype):
    theirs = make_lerobot_env(monkeypatch, "libero_object", 0, control_mode="absolute")
    ours = LiberoEnv("libero_object", 0, control_mode="absolute")
    expected, _ = theirs.reset(seed=SEED)
    seen, _ = ours.reset(seed=SEED, options={"init_state_id": INIT_STATE})
    assert_same_observation(seen, expected)
    goal = np.concatenate([seen["observation.state"][:6], [-1.0]]).astype(dtype)
    goal[:3] += (0.05, 0.02, -0.03)
    play_both(ours, theirs, [goal] * 15)
    np.testing.assert_array_equal(ours._env.robots[0].controller.goal_pos, goal[:3])
    assert ours.action_space.contains(goal.astype(np.float32))
    ours.close()
    theirs.close()
