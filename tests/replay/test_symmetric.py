"""Half offline, half online."""

import pathlib
import sys

import numpy as np
import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import FEATURES, GAMMA, filled, make_episode, schema

from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay


def ring_with(first_number, seed):
    ring = FrameRing(schema(), 50, seed=seed)
    for number in (first_number, first_number + 1):
        ring.add_episodes(make_episode(number, 10, True), [10], GAMMA)
    return ring


def episodes_of(batch):
    return (batch["observation"][:, 0] // 1000).int()


@pytest.mark.parametrize(("batch_size", "num_offline"), [(64, 32), (7, 3)])
def test_half_of_each(batch_size, num_offline):
    replay = SymmetricReplay(offline=ring_with(0, 0), online=ring_with(10, 1))
    batch = replay.sample(batch_size, 3, GAMMA)
    from_offline = episodes_of(batch) < 10
    assert from_offline[:num_offline].all()
    assert not from_offline[num_offline:].any()
    assert all(len(value) == batch_size for value in batch.values())
    assert len(replay) == 40


def test_the_halves_are_what_the_rings_would_sample():
    replay = SymmetricReplay(offline=ring_with(0, 0), online=ring_with(10, 1))
    offline, online = ring_with(0, 0), ring_with(10, 1)
    batch = replay.sample(32, 2, GAMMA)
    halves = offline.sample(16, 2, GAMMA), online.sample(16, 2, GAMMA)
    for key, value in batch.items():
        assert torch.equal(value, torch.cat([halves[0][key], halves[1][key]]))


def test_one_empty_ring_leaves_all_to_the_other():
    empty = FrameRing(schema(), 50)
    online_only = SymmetricReplay(offline=empty, online=ring_with(10, 1))
    assert (episodes_of(online_only.sample(16, 1, GAMMA)) >= 10).all()
    offline_only = SymmetricReplay(offline=ring_with(0, 0), online=empty)
    assert (episodes_of(offline_only.sample(16, 1, GAMMA)) < 10).all()
    with pytest.raises(ValueError, match="no episode has been stored"):
        SymmetricReplay(offline=empty, online=empty).sample(16, 1, GAMMA)


def test_images_are_joined():
    rings = [FrameRing(schema(images=True), 50, seed=s) for s in (0, 1)]
    for number, ring in enumerate(rings):
        ring.add_episodes(make_episode(number, 10, True, images=True), [10], GAMMA)
    batch = SymmetricReplay(*rings).sample(8, 1, GAMMA)
    assert batch["observation.images.image"].shape == (8, 4, 4, 3)
    assert batch["observation.images.image"][:, 0, 0, 0].tolist() == [0] * 4 + [1] * 4


def rings_with_everything():
    rings = [FrameRing(schema(features="e", extras=True), 50, seed=s) for s in (0, 1)]
    for number, ring in enumerate(rings):
        episode = make_episode(number, 10, True, features=True, extras=True)
        ring.add_episodes(episode, [10], GAMMA)
    return rings


def test_features_and_further_columns_are_joined():
    batch = SymmetricReplay(*rings_with_everything()).sample(8, 3, GAMMA)
    halves = [ring.sample(4, 3, GAMMA) for ring in rings_with_everything()]
    for name in (FEATURES, f"next.{FEATURES}", "discrete_action", "discrete_penalty", "probing"):
        assert torch.equal(batch[name], torch.cat([half[name] for half in halves]))
    assert batch[FEATURES][:, 0, 0, 0].tolist() == [0] * 4 + [1] * 4


def test_observations_of_both_rings():
    offline, _ = filled(30, [[(5, True), (4, False)]])
    online = ring_with(10, 1)
    observations = SymmetricReplay(offline, online).observations()
    assert observations.shape == (29, 3)
    np.testing.assert_array_equal(observations[:5, 0], [0, 1, 2, 3, 4])


def test_rings_with_different_columns_are_refused():
    other = ReplaySchema({**schema().columns, "extra": ColumnSpec((3,))}, schema().observation_keys)
    with pytest.raises(ValueError, match="different columns"):
        SymmetricReplay(FrameRing(schema(), 10), FrameRing(other, 10))


def test_rings_with_features_of_different_encoders_are_refused():
    rings = [FrameRing(schema(features=encoder), 10) for encoder in ("one", "two")]
    with pytest.raises(ValueError, match="encoder one, of the online ring of encoder two"):
        SymmetricReplay(*rings)


def test_rings_that_pack_their_rows_in_another_order_are_refused():
    columns = schema(extras=True).columns
    last = {"discrete_action": columns.pop("discrete_action")}
    other = ReplaySchema(columns | last, schema().observation_keys)
    with pytest.raises(ValueError, match="different columns"):
        SymmetricReplay(FrameRing(schema(extras=True), 10), FrameRing(other, 10))
