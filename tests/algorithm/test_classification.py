"""Reward classifiers: curve, threshold, split and verdict, against counts made by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.algorithm.classification import (
    LabelledFrames,
    choose_threshold,
    fires,
    fit,
    judge,
    precision_recall,
    split_by_episode,
)
from pld_ray.networks.reward_classifier import (
    ClassifierError,
    ClassifierShape,
    RewardClassifier,
    TrainedClassifier,
    load_classifier,
)

SHAPE = ClassifierShape({"a": (40, 40), "b": (40, 48)}, "cnn", 2, 16, 8)
scored = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30)


@given(scored)
def test_the_curve_is_what_counting_gives_at_each_threshold(pairs):
    probability = np.array([p / 8 for p, _ in pairs])
    success = np.array([s for _, s in pairs])
    if not success.any():
        return
    curve = precision_recall(probability, success)
    np.testing.assert_array_equal(curve.thresholds, np.unique(probability))
    for threshold, precision, recall in zip(
        curve.thresholds, curve.precision, curve.recall, strict=True
    ):
        positive = probability >= threshold
        assert precision == (positive & success).sum() / positive.sum()
        assert recall == (positive & success).sum() / success.sum()


@given(scored, st.floats(0.1, 1.0))
def test_no_lower_threshold_has_the_precision(pairs, wanted):
    probability = np.array([p / 8 for p, _ in pairs])
    success = np.array([s for _, s in pairs])
    if not success.any():
        return
    curve = precision_recall(probability, success)
    threshold = choose_threshold(curve, wanted)
    positive = probability >= threshold
    reached = (positive & success).sum() / positive.sum()
    if (curve.precision >= wanted).any():
        assert reached >= wanted
        lower = curve.precision[curve.thresholds < threshold]
        assert not (lower >= wanted).any()
    else:
        assert reached == curve.precision.max()


def labelled(successes):
    """One frame a character: `1` is a success; episodes are words."""
    success = np.array([c == "1" for word in successes.split() for c in word])
    episode = np.concatenate([np.full(len(w), k) for k, w in enumerate(successes.split())])
    return LabelledFrames({"a": np.zeros((len(success), 1, 1, 3), np.uint8)}, success, episode)


def test_frames_and_episodes_are_judged_by_hand():
    frames = labelled("0011 0000 0111 0011")
    probability = np.array([0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1.0])
    found = judge(frames, probability, 0.5, 2)
    assert found["precision"] == 5 / 8
    assert found["recall"] == 5 / 7
    # ended: the first, at a success; the second, at none. The others have no two in a row
    assert found["episode_precision"] == 1 / 2
    assert found["episode_recall"] == 1 / 3
    assert fires([True, False, True, True], 2) == 3
    assert fires([True, False, True], 2) is None


@given(
    st.integers(0, 2**31), st.lists(st.booleans(), min_size=2, max_size=12), st.floats(0.05, 0.9)
)
def test_no_episode_is_on_both_sides_and_each_side_has_a_success(seed, kinds, share):
    frames = labelled(" ".join("001" if k else "000" for k in kinds))
    rng = np.random.default_rng(seed)
    if sum(kinds) < 2:
        with pytest.raises(ValueError, match="two are needed"):
            split_by_episode(frames, share, rng)
        return
    learns, validates = split_by_episode(frames, share, rng)
    assert (learns ^ validates).all()
    assert not set(frames.episode[learns]) & set(frames.episode[validates])
    assert frames.success[learns].any()
    assert frames.success[validates].any()


def bright(rng, n):
    """Half of the images have a bright corner in camera b: these are the successes."""
    success = np.arange(n) % 2 == 0
    images = {k: rng.integers(0, 80, (n, *size, 3), dtype=np.uint8) for k, size in CAMERAS.items()}
    images["b"][success, :12, :12] = 250
    return LabelledFrames(images, success, np.arange(n) // 4)


CAMERAS = dict(SHAPE.cameras)


def test_it_learns_what_one_camera_shows_and_repeats_itself():
    rng = np.random.default_rng(0)
    frames, held = bright(rng, 80), bright(rng, 40)
    made = []
    for _ in range(2):
        network = RewardClassifier(SHAPE, seed=3)
        options = {"steps": 25, "batch_size": 16, "learning_rate": 1e-3, "image_shift": 2}
        fit(network, frames, **options, seed=5)
        assert not network.training
        made.append(network.probabilities(held.images).numpy())
    assert ((made[0] > 0.5) == held.success).mean() > 0.95
    np.testing.assert_array_equal(made[0], made[1])


def test_a_frozen_encoder_stays_as_it_is():
    frames = bright(np.random.default_rng(0), 16)
    network = RewardClassifier(SHAPE, train_encoder=False)
    before = [p.clone() for p in network.encoder.parameters()]
    fit(network, frames, steps=2, batch_size=4, learning_rate=0.1, image_shift=0, seed=0)
    assert all(map(torch.equal, before, network.encoder.parameters()))


def test_a_folder_gives_back_the_same_judge_and_damage_is_named(tmp_path):
    rng = np.random.default_rng(1)
    network = RewardClassifier(SHAPE, seed=1).eval()
    TrainedClassifier(network, 0.75, 3, {"dataset": ["x"]}).save(tmp_path)
    again = load_classifier(tmp_path)
    assert (again.threshold, again.consecutive, again.about) == (0.75, 3, {"dataset": ["x"]})
    images = bright(rng, 6).images
    assert torch.equal(again.network.probabilities(images), network.probabilities(images))
    again.check_cameras({"a": (40, 40, 3), "b": (40, 48, 3)}, "the environment")
    with pytest.raises(ClassifierError, match="sees b of 40 x 48 pixels and the environment"):
        again.check_cameras({"a": (40, 40, 3), "b": (8, 8, 3)}, "the environment")
    weights = tmp_path / "classifier.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ClassifierError, match="is damaged"):
        load_classifier(tmp_path)
    with pytest.raises(ClassifierError, match="is no reward classifier"):
        load_classifier(tmp_path / "none")
