"""Features of a frozen encoder: stored beside their rows, bound to the encoder that made them."""

import pathlib
import sys

import numpy as np
import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import FEATURES, GAMMA, make_episode, schema

from pld_ray.replay import ColumnSpec, FrameRing, ReplayFileError, ReplaySchema


def test_features_follow_their_rows_through_wraps_and_evictions():
    ring = FrameRing(schema(features="encoder", images=True), 23, seed=0)
    originals = {}
    for number in range(12):
        episode = make_episode(number, 3 + number % 4, True, features=True, images=True)
        originals[number] = episode[FEATURES]
        episode[FEATURES] = torch.from_numpy(episode[FEATURES])  # as an encoder returns them
        ring.add_episodes(episode, [3 + number % 4], GAMMA)
        batch = ring.sample(64, 2, GAMMA)
        for prefix, vector in (("", "observation"), ("next.", "next_observation")):
            values = batch[prefix + FEATURES]
            assert values.dtype == torch.float16
            assert values.shape == (64, 5, 2, 3)
            ids = batch[vector][:, 0].long().tolist()
            want = np.stack([originals[i // 1000][i % 1000] for i in ids])
            np.testing.assert_array_equal(values.numpy(), want)


def test_a_column_of_features_is_read_by_row():
    ring = FrameRing(schema(features="encoder"), 20)
    ring.add_episodes(make_episode(3, 5, True, features=True), [5], GAMMA)
    rows, mask = ring.windows(ring.start_rows(), 2)
    values = ring.column(FEATURES, rows)
    assert values.shape == (5, 2, 5, 2, 3)
    assert values[:, 1, 0, 0, 1][mask[:, 1]].tolist() == [1, 2, 3, 4]


def test_features_need_a_fingerprint_and_half_precision():
    columns, keys = schema(features="encoder").columns, schema().observation_keys
    for missing in (None, ""):
        with pytest.raises(ValueError, match=f"'{FEATURES}' needs features_fingerprint"):
            ReplaySchema(columns, keys, missing)
    full = columns | {FEATURES: ColumnSpec((5, 2, 3), "float32")}
    with pytest.raises(ValueError, match=rf"'{FEATURES}' has dtype float32, need .*float16"):
        ReplaySchema(full, keys, "encoder")
    ring, episode = FrameRing(schema(features="encoder"), 20), make_episode(0, 5, True)
    episode[FEATURES] = np.zeros((6, 5, 2, 3), np.float32)
    with pytest.raises(ValueError, match=f"'{FEATURES}' is float32, need float16"):
        ring.add_episodes(episode, [5], GAMMA)


def test_saved_features_come_back_and_those_of_another_encoder_are_refused(tmp_path):
    ring = FrameRing(schema(features="encoder-a"), 20, seed=0)
    for number in range(6):  # wraps
        ring.add_episodes(make_episode(number, 5, True, features=True), [5], GAMMA)
    ring.save(tmp_path)
    same = FrameRing(schema(features="encoder-a"), 20, seed=9)
    same.load(tmp_path)
    one, other = ring.sample(32), same.sample(32)
    assert torch.equal(one[FEATURES], other[FEATURES])
    assert torch.equal(one[f"next.{FEATURES}"], other[f"next.{FEATURES}"])
    with pytest.raises(
        ReplayFileError,
        match=r"ring\.json.*by encoder encoder-a but this run has encoder encoder-b; use the same "
        r"vision_encoder_name.*or collect",
    ):
        FrameRing(schema(features="encoder-b"), 20).load(tmp_path)
    with pytest.raises(ReplayFileError, match=f"column '{FEATURES}'"):
        FrameRing(schema(), 20).load(tmp_path)
