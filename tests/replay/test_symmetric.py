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


# --- a share of successes ------------------------------------------------------------------------


def ring_of_outcomes(outcomes, seed=0, capacity=200):
    """Episode 10 + k succeeded if outcome k says so."""
    columns = {**schema().columns, "succeeded": ColumnSpec((), "bool")}
    keys = ["observation.state", "observation.environment_state"]
    ring = FrameRing(ReplaySchema(columns, keys), capacity, seed=seed)
    for number, succeeded in enumerate(outcomes, 10):
        add_outcome(ring, number, succeeded)
    return ring


def add_outcome(ring, number, succeeded):
    episode = {**make_episode(number, 10, True), "succeeded": np.full(11, succeeded)}
    ring.add_episodes(episode, [10], GAMMA)


def offline_successes():
    ring = ring_of_outcomes([])
    add_outcome(ring, 0, True)
    return ring


def test_successes_take_a_share_of_the_offline_half():
    outcomes = [True, False, False, True, False]
    replay = SymmetricReplay(offline_successes(), ring_of_outcomes(outcomes, 1), 0.25)
    episodes = [episodes_of(replay.sample(64, 3, GAMMA)) for _ in range(20)]
    for drawn in episodes:
        assert (drawn[:16] == 0).all()
        assert (drawn[32:] >= 10).all()
    assert torch.cat([drawn[16:32] for drawn in episodes]).unique().tolist() == [10, 13]
    assert torch.cat([drawn[32:] for drawn in episodes]).unique().tolist() == list(range(10, 15))
    batch = replay.sample(64, 3, GAMMA)
    assert batch["succeeded"][:32].all()
    assert all(len(value) == 64 for value in batch.values())


def test_the_whole_offline_half_may_be_successes():
    replay = SymmetricReplay(offline_successes(), ring_of_outcomes([False, True], 1), 0.5)
    episodes = episodes_of(replay.sample(7, 1, GAMMA))
    assert (episodes[:3] == 11).all()
    assert (episodes >= 10).all()


def test_without_a_success_or_a_share_half_is_offline():
    for outcomes, share in (([False, False], 0.25), ([True, True], 0.0)):
        replay, plain = (
            SymmetricReplay(offline_successes(), ring_of_outcomes(outcomes, 1), it)
            for it in (share, 0.0)
        )
        assert torch.equal(*(it.sample(16, 2, GAMMA)["observation"] for it in (replay, plain)))


def test_successes_come_and_go_with_their_episodes(tmp_path):
    ring = ring_of_outcomes([True, False], capacity=33)  # three episodes
    known = []
    for number, succeeded in ((12, True), (13, False), (14, False), (15, False)):
        known.append(ring.succeeded_rows().tolist())
        add_outcome(ring, number, succeeded)
        if number == 13:
            ring.save(tmp_path)
    assert known == [[*range(10)], [*range(10), *range(22, 32)], [*range(22, 32)], [*range(22, 32)]]
    assert ring.succeeded_rows().tolist() == []
    ring.load(tmp_path)
    held = ring.column("observation.state", ring.succeeded_rows())[:, 0] // 1000
    assert held.unique().tolist() == [12]
    ring.clear()
    assert ring.succeeded_rows().tolist() == []


def test_a_ring_that_is_loaded_knows_its_own_successes(tmp_path):
    ring, other = (ring_of_outcomes(it) for it in ([True, False], [False, True]))
    assert ring.succeeded_rows().tolist() == [*range(10)]
    other.save(tmp_path)
    ring.load(tmp_path)  # as many episodes
    assert ring.succeeded_rows().tolist() == [*range(11, 21)]
