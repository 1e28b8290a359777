"""Observation names and shapes: what fits is taken, what does not is explained."""

import json
import shutil

import numpy as np
import pytest
from tiny_policies import FRONT, STATE, WRIST, make_observations, make_tasks, save_policy

from pld_ray.policies.lerobot_names import (
    NamedFeatures,
    environment_names,
    missing_observations,
    suggest_rename_map,
)
from pld_ray.policies.protocol import PolicyDescription

AGENT, HAND = "observation.images.agentview", "observation.images.eye_in_hand"
RENAME = {AGENT: FRONT, HAND: WRIST}
EXCHANGE = {FRONT: WRIST, WRIST: FRONT}


def renamed(observations):
    names = {own: env for env, own in RENAME.items()}
    return {names.get(key, key): value for key, value in observations.items()}


def test_renamed_observations_give_the_same_answers(load_tiny, tiny_policy):
    policy, observations = load_tiny("pi05", rename_map=RENAME), make_observations(3, 0)
    request = (make_tasks(3), [0, 1, 2], [0, 1, 2])
    assert policy.input_features == {AGENT: (3, 64, 64), HAND: (3, 64, 64), STATE: (8,)}
    np.testing.assert_array_equal(
        policy.infer(renamed(observations), *request).chunks,
        tiny_policy("pi05").infer(observations, *request).chunks,
    )
    assert policy.fingerprint != tiny_policy("pi05").fingerprint


def test_cameras_can_be_exchanged(load_tiny, tiny_policy):
    policy, observations = load_tiny("act", rename_map=EXCHANGE), make_observations(3, 0)
    exchanged = {**observations, FRONT: observations[WRIST], WRIST: observations[FRONT]}
    request = (make_tasks(3), [0, 1, 2])
    np.testing.assert_array_equal(
        policy.infer(observations, *request).chunks,
        tiny_policy("act").infer(exchanged, *request).chunks,
    )


def test_names_of_the_training_data_are_the_default(tiny_directory, load_tiny, tmp_path):
    """As LeRobot saves them when a policy is fine-tuned on data with other names."""
    copy = shutil.copytree(tiny_directory("act"), tmp_path / "copy")
    file = copy / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    assert content["steps"][0]["registry_name"] == "rename_observations_processor"
    content["steps"][0]["config"]["rename_map"] = {**RENAME, "unused": "also.unused"}
    file.write_text(json.dumps(content))
    assert set(load_tiny(copy).input_features) == {AGENT, HAND, STATE}
    assert set(load_tiny(copy, rename_map={HAND: FRONT}).input_features) == {HAND, WRIST, STATE}


@pytest.mark.parametrize(
    ("rename_map", "message"),
    [
        ({"observation.images.a": "observation.images.b"}, r"leads to \['observation.images.b'\]"),
        ({AGENT: FRONT, HAND: FRONT}, "two observations the same name"),
        ({FRONT: WRIST}, "two observations the same name"),
        ({"camera": FRONT}, "images must stay images"),
    ],
)
def test_a_rename_map_that_cannot_work_is_refused(load_tiny, rename_map, message):
    with pytest.raises(ValueError, match=message):
        load_tiny("act", rename_map=rename_map)


def test_names_without_a_map_are_the_policys():
    assert environment_names([FRONT, STATE], {}) == {FRONT: FRONT, STATE: STATE}


def test_missing_cameras_name_both_lists_and_the_flag(tiny_policy):
    policy, observations = tiny_policy("smolvla"), renamed(make_observations(2, 0))
    with pytest.raises(ValueError, match="the base policy needs") as refused:
        policy.infer(observations, make_tasks(2), [0, 1], [0, 1])
    text = str(refused.value)
    assert all(repr(name) in text for name in (FRONT, WRIST, AGENT, HAND, STATE))
    flag = f"--policy.rename_map='{json.dumps(RENAME)}'"
    assert flag in text
    assert "rename_map" not in missing_observations([STATE], [])


@pytest.mark.parametrize(
    ("needed", "given", "expected"),
    [
        (["image", "image2"], ["front", "wrist"], {"front": "image", "wrist": "image2"}),
        (["wrist", "top"], ["front", "hand"], {"hand": "wrist", "front": "top"}),
        (
            ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"],
            ["image", "image2"],
            {"image": "base_0_rgb", "image2": "left_wrist_0_rgb"},
        ),
        (["camera1", "camera2"], ["image", "image2"], {"image": "camera1", "image2": "camera2"}),
        (["image", "top"], ["image", "front"], {"front": "top"}),
        (["image"], ["image"], {}),
        (["image"], [], {}),
    ],
)
def test_suggested_rename_maps(needed, given, expected):
    def full(name):
        return f"observation.images.{name}"

    suggestion = suggest_rename_map([STATE, *map(full, needed)], [*map(full, given), "other"])
    assert suggestion == {full(env): full(own) for env, own in expected.items()}


def test_wrong_shapes_are_refused(tiny_policy):
    policy, observations = tiny_policy("pi05"), make_observations(2, 0)
    for key, value, message in (
        (STATE, observations[STATE][:, :7], r"'observation.state' has shape \(2, 7\).*\(2, 8\)"),
        (FRONT, observations[FRONT][:, :32], r"has shape \(2, 32, 64, 3\).*\(2, 64, 64, 3\)"),
        (WRIST, observations[WRIST][:1], r"has shape \(1, 64, 64, 3\).*for 2 tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.infer({**observations, key: value}, make_tasks(2), [0, 1], [0, 1])


def test_diffusion_takes_a_window_of_observations(tiny_policy):
    policy = tiny_policy("diffusion")
    assert policy.n_obs_steps == 2
    with pytest.raises(ValueError, match=r"has shape \(2, 64, 64, 3\).*\(2, 2, 64, 64, 3\)"):
        policy.infer(make_observations(2, 0), make_tasks(2), [0, 1], [0, 1])


@pytest.mark.parametrize("kind", ["smolvla", "pi0", "pi05"])
def test_cameras_that_the_policy_fills_in_are_not_asked_for(load_tiny, tmp_path, kind):
    policy = load_tiny(
        save_policy(kind, tmp_path, empty_cameras=1), tokenizer_path=tmp_path / "tokenizer"
    )
    assert set(policy.input_features) == {FRONT, WRIST, STATE}
    answer = policy.infer(make_observations(2, 0), make_tasks(2), [0, 1], [0, 1]).chunks
    assert np.isfinite(answer).all()


FLAG = "--policy.rename_map='"


def followed(load, directory, given, rename_map=None):
    """The map that a policy's own advice leads to, one step after the other; it must end."""
    for _ in range(2):
        policy = load(directory, rename_map=rename_map)
        if set(policy.input_features) <= set(given):
            return rename_map
        message = missing_observations(policy.input_features, given)
        described = PolicyDescription.of(policy).input_features
        assert missing_observations(described, given) == message
        rename_map = json.loads(message.split(FLAG)[1][:-1])
    raise AssertionError(f"the advice does not help: {message}")


@pytest.mark.parametrize("given", [(FRONT, WRIST), (AGENT, HAND)])
def test_advice_overrides_the_names_of_the_training_data(
    tiny_directory, load_tiny, tmp_path, given
):
    copy = shutil.copytree(tiny_directory("act"), tmp_path / "copy")
    file = copy / "policy_preprocessor.json"
    content = json.loads(file.read_text())
    trained = {"observation.images.a": FRONT, "observation.images.b_wrist": WRIST}
    content["steps"][0]["config"]["rename_map"] = trained
    file.write_text(json.dumps(content))
    found = followed(load_tiny, copy, [*given, STATE])
    assert found == dict(zip(given, (FRONT, WRIST), strict=True))


@pytest.mark.parametrize("started", [{AGENT: FRONT}, {HAND: WRIST}, {HAND: FRONT}])
def test_advice_keeps_what_is_renamed_already(load_tiny, tiny_directory, started):
    found = followed(load_tiny, tiny_directory("act"), [AGENT, HAND, STATE], started)
    assert started.items() < found.items()
    assert set(found) == {AGENT, HAND}


def test_there_is_no_advice_where_nothing_would_help():
    own = {AGENT: FRONT, "observation.pose": STATE}
    shapes = {AGENT: (3, 64, 64), "observation.pose": (8,)}
    assert FLAG not in missing_observations(NamedFeatures(shapes, own), [AGENT])
