"""Episodes of which only some rows may start a window."""

import pathlib
import sys
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, join, lengths, make_episode, schema

from pld_ray.replay import FrameRing, SymmetricReplay

marked = st.lists(st.booleans(), min_size=1, max_size=6)


def with_starts(number, marks):
    episode = make_episode(number, len(marks), number % 2 == 0)
    # what stands on the final frame, which starts nothing, must not matter
    return episode | {"start": np.array([*marks, True])}


def ids(episodes):
    return [
        1000 * number + t
        for number, marks in episodes
        for t, is_start in enumerate(marks)
        if is_start
    ]


@settings(max_examples=50)
@given(st.lists(st.lists(marked, min_size=1, max_size=3), min_size=1, max_size=5))
def test_only_marked_rows_are_sampled_through_eviction_and_files(batches):
    capacity, kept, number = 16, [], 0
    ring = FrameRing(schema(), capacity)
    with tempfile.TemporaryDirectory() as folder:
        for k, batch in enumerate(batches):
            episodes = []
            for marks in batch:
                episodes.append(with_starts(number, marks))
                kept.append((number, marks))
                number += 1
            ring.add_episodes(join(episodes), lengths(episodes), GAMMA)
            while sum(len(marks) + 1 for _, marks in kept) > capacity:
                kept.pop(0)
            if k % 2:
                path = pathlib.Path(folder) / str(k)
                ring.save(path)
                ring = FrameRing(schema(), capacity, seed=5)
                ring.load(path)
            assert len(ring) == len(ids(kept))
            assert ring.observations()[:, 0].tolist() == ids(kept)
            rows = ring.transition_rows()
            every = [1000 * n + t for n, marks in kept for t in range(len(marks))]
            assert ring.column("observation.state", rows).flatten().tolist() == every
            if len(ring):
                drawn = set(ring.sample(200)["observation"][:, 0].tolist())
                assert drawn <= set(ids(kept))
                assert len(ids(kept)) > 4 or drawn == set(ids(kept))


def test_a_window_goes_on_through_rows_that_start_none():
    ring = FrameRing(schema(), 20)
    episode = with_starts(0, [False, True, False, False])
    ring.add_episodes(episode, [4], GAMMA)
    batch = ring.sample(8, n_step=3, gamma=GAMMA)
    expected = sum(GAMMA**k * episode["reward"][1 + k] for k in range(3))
    torch.testing.assert_close(batch["reward"], torch.full((8,), float(expected)))
    assert (batch["next_observation"][:, 0] == 4).all()
    assert (batch["discount"] == 0).all()  # it terminated there
    returns = sum(GAMMA**k * episode["reward"][1 + k] for k in range(3))
    torch.testing.assert_close(batch["mc_return"], torch.full((8,), float(returns)))


def test_without_a_marked_row_the_other_ring_fills_the_batch():
    offline, online = FrameRing(schema(), 20), FrameRing(schema(), 20)
    offline.add_episodes(with_starts(3, [False, False]), [2], GAMMA)
    with pytest.raises(ValueError, match="no episode"):
        offline.sample(1)
    online.add_episodes(make_episode(7, 3, True), [3], GAMMA)
    batch = SymmetricReplay(offline, online).sample(6)
    assert (batch["observation"][:, 0] >= 7000).all()


def test_a_ring_whose_every_transition_starts_is_saved_as_ever(tmp_path):
    plain, marked = FrameRing(schema(), 20), FrameRing(schema(), 20)
    episode = make_episode(1, 5, True)
    plain.add_episodes(episode, [5], GAMMA)
    marked.add_episodes(episode | {"start": np.ones(6, bool)}, [5], GAMMA)
    for name, ring in (("plain", plain), ("marked", marked)):
        ring.save(tmp_path / name)
    one, two = (next((tmp_path / n).glob("segment-*")) for n in ("plain", "marked"))
    assert one.read_bytes() == two.read_bytes()


def test_the_marks_of_an_episode_are_saved_though_the_one_before_has_none(tmp_path):
    ring = FrameRing(schema(), 20)
    ring.add_episodes(make_episode(0, 4, True), [4], GAMMA)
    ring.save(tmp_path)
    ring.add_episodes(with_starts(1, [False, True, False, True]), [4], GAMMA)
    ring.save(tmp_path)  # which writes the second one alone
    other = FrameRing(schema(), 20)
    other.load(tmp_path)
    assert other.observations()[:, 0].tolist() == [0, 1, 2, 3, 1001, 1003]
