"""Camera observations; skipped where no off-screen OpenGL library is installed."""

from __future__ import annotations

import numpy as np
import pytest

from envs import LiberoEnv, bootstrap
from envs.rendering import CAMERAS


@pytest.fixture(scope="module", autouse=True)
def rendering():
    try:
        return bootstrap.enable_rendering()
    except bootstrap.RenderingUnavailableError as error:
        pytest.skip(f"no cameras here: {error}")


@pytest.fixture(scope="module")
def camera_env():
    env = LiberoEnv(cameras=("image", "image2"), image_size=64, render_mode="rgb_array")
    yield env
    env.close()


def test_images_are_liberos_turned_by_180_degrees(camera_env):
    observation, _ = camera_env.reset(options={"init_state_id": 0})
    assert camera_env.observation_space.contains(observation)
    for name, camera in (("image", "agentview"), ("image2", "robot0_eye_in_hand")):
        ours = observation[f"observation.images.{name}"]
        assert (ours.shape, ours.dtype) == ((64, 64, 3), np.uint8)
        libero = camera_env._env.sim.render(camera_name=camera, width=64, height=64)
        np.testing.assert_array_equal(ours, np.rot90(libero, 2))
        assert ours.std() > 10  # a picture of something
    assert not np.array_equal(observation["observation.images.image"], ours)


def test_the_picture_shows_the_scene(camera_env):
    """The red can moves between init states, and so do reddish pixels in the agentview."""
    centers = []
    for init_state_id in range(4):
        camera_env.reset(options={"init_state_id": init_state_id})
        red, green, blue = np.moveaxis(camera_env.render().astype(int), -1, 0)
        rows, _ = np.nonzero((red > green + 60) & (red > blue + 60))
        assert len(rows) > 3
        centers.append((camera_env.expert_view()["target_pos"][0], rows.mean()))
    centers.sort()
    rows = [row for _, row in centers]
    assert rows == sorted(rows)  # the nearer to the camera (+x), the lower in the picture


def test_cameras_do_not_change_the_physics(camera_env, env):
    rng = np.random.default_rng(0)
    for e in (camera_env, env):
        e.reset(seed=9)
    for _ in range(5):
        action = rng.uniform(-1, 1, 7)
        with_images, without = camera_env.step(action)[0], env.step(action)[0]
        for key, value in without.items():
            assert value.tobytes() == with_images[key].tobytes()
    assert camera_env.flat_state().tobytes() == env.flat_state().tobytes()


def test_two_environments_do_not_draw_into_each_others_context(camera_env):
    other = LiberoEnv("pld_tabletop", "lift_the_can", cameras=("image",), image_size=32)
    alone = camera_env.reset(options={"init_state_id": 1})[0]["observation.images.image"]
    other.reset(options={"init_state_id": 5})
    small = other.step(np.zeros(7))[0]["observation.images.image"]
    again = camera_env.reset(options={"init_state_id": 1})[0]["observation.images.image"]
    np.testing.assert_array_equal(alone, again)
    assert small.shape == (32, 32, 3)
    assert small.std() > 10
    other.close()


def test_render_needs_to_be_asked_for(env):
    env.reset(seed=0)
    with pytest.raises(bootstrap.RenderingUnavailableError, match="render_mode"):
        env.render()


def test_what_is_outside_the_picture_is_skipped_and_nothing_changes():
    env = LiberoEnv(cameras=("image", "image2"), image_size=64, rendering="fast")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    hidden = 0
    for _ in range(3):
        for _ in range(5):
            observation, *_ = env.step(rng.uniform(-1, 1, 7))
        for name, camera in CAMERAS.items():
            groups = env._env.sim.model._model.geom_group
            before = groups.copy()
            env._camera._frustum.hide_outside(camera)
            hidden += (groups != before).sum()
            env._camera._frustum.show_all()
            np.testing.assert_array_equal(groups, before)
            whole = env._env.sim.render(camera_name=camera, width=64, height=64)[::-1, ::-1]
            np.testing.assert_array_equal(observation[f"observation.images.{name}"], whole)
    assert hidden > 20
    env.close()


def test_fast_rendering_of_a_suite_without_expensive_effects_is_the_same():
    pictures = []
    for rendering in ("reference", "fast"):
        env = LiberoEnv(cameras="image", image_size=64, rendering=rendering)
        pictures.append(env.reset(seed=0)[0]["observation.images.image"])
        env.close()
    np.testing.assert_array_equal(*pictures)
