"""Episodes of which only some rows may start a window."""

import pathlib
import sys
import tempfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, join, lengths, make_episode, schema

from pld_ray.replay import ChunkRing, ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay
from pld_ray.replay.ingest import stretches

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


# --- episodes of which only what windows see is stored -------------------------------------------


@given(st.lists(st.booleans(), min_size=2, max_size=20), st.integers(1, 6))
def test_what_windows_see_is_kept_and_nothing_else(marks, window):
    """The last mark is the final frame's, which starts none."""
    length = len(marks) - 1
    windows = [range(t, min(t + window, length) + 1) for t in range(length) if marks[t]]
    found = [range(length + 1)[part] for part in stretches(torch.tensor(marks), window)]
    assert [row for part in found for row in part] == sorted({row for w in windows for row in w})
    assert all(any(set(w) <= set(part) for part in found) for w in windows)
    assert all(one.stop < other.start for one, other in pairwise(found))


def with_success(base):
    columns = {**base.columns, "success": ColumnSpec((), "bool")}
    return ReplaySchema(columns, base.observation_keys)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=1, max_size=30), st.booleans()), min_size=1
    ),
    st.integers(1, 5),
)
def test_the_windows_of_what_is_kept_are_those_of_the_whole_episodes(told, window):
    """Rewards, discounts, successors, returns and success, for every length that was asked for."""
    episodes = []
    for number, (marks, terminated) in enumerate(told):
        episode = make_episode(number, len(marks), terminated, extras=True)
        episode |= {"start": np.array([*marks, True]), "success": np.zeros(len(marks) + 1, bool)}
        episode["success"][-2] = terminated
        episodes.append(episode)
    given = join(episodes), lengths(episodes), GAMMA
    rings = [ChunkRing(with_success(schema(extras=True)), 1000) for _ in range(2)]
    whole, kept = rings
    whole.add_episodes(*given)
    kept.add_episodes(*given, window)
    assert kept.num_rows <= whole.num_rows
    assert len(kept) == len(whole)
    if not len(kept):
        return
    for steps in range(1, window + 1):
        one, other = (
            ring.gather(ring.start_rows(), steps, GAMMA).unpack(ring.schema) for ring in rings
        )
        one.pop("success"), other.pop("success")  # of a step; of the episode see below
        for name, values in one.items():
            torch.testing.assert_close(other[name], values, msg=f"{name}, {steps} steps")
    for tail in ("pad", "drop"):
        assert kept.has_windows(window, tail) == whole.has_windows(window, tail)
        if kept.has_windows(window, tail):
            assert kept.num_windows(window, tail) == whole.num_windows(window, tail)
            batch = kept.sample_windows(50, window, GAMMA, tail=tail)
            numbers = (batch["observation"][:, 0] // 1000).long().tolist()
            assert batch["positive"].tolist() == [told[number][1] for number in numbers]


def test_a_longer_window_than_was_asked_for_ends_with_what_is_kept():
    ring = FrameRing(schema(extras=True), 50)
    episode = with_starts(0, [False, True] + 10 * [False]) | make_episode(0, 12, True, extras=True)
    ring.add_episodes(episode, [12], GAMMA, window=2)
    assert (ring.num_rows, ring.episode_lengths) == (3, [2])
    batch = ring.sample(1, n_step=5, gamma=GAMMA)
    for name in ("reward", "discrete_penalty"):
        expected = sum(GAMMA**k * float(episode[name][1 + k]) for k in range(2))
        assert batch[name].item() == pytest.approx(expected, abs=1e-5)
    assert batch["discount"].item() == pytest.approx(GAMMA**2)
    assert batch["next_observation"][0, 0] == 3


def test_short_interventions_leave_the_demonstrations_where_they_are(tmp_path):
    """Twenty demonstrations of 100 steps, and room for three times what five steps take."""
    ring = FrameRing(schema(), 20 * 101 + 3 * 8)
    for number in range(20):
        ring.add_episodes(make_episode(number, 100, True), [100], GAMMA)
    for number in range(20, 23):
        assert not ring.dropped_first
        marks = [100 <= t < 105 for t in range(300)]
        ring.add_episodes(with_starts(number, marks), [300], GAMMA, window=3)
    assert not ring.dropped_first
    assert ring.episode_lengths == [100] * 20 + [7] * 3
    ring.add_episodes(with_starts(24, [True]), [1], GAMMA, window=3)
    assert ring.dropped_first
    assert ring.episode_lengths == [100] * 19 + [7] * 3 + [1]
    ring.save(tmp_path)
    other = FrameRing(schema(), 20 * 101 + 3 * 8)
    other.load(tmp_path)
    for number in range(25, 40):
        other.add_episodes(make_episode(number, 100, True), [100], GAMMA)
    assert not other.dropped_first  # what that run was filled with had left before
