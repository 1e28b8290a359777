"""Windows of H actions: by hand, and against the episodes themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.replay import ChunkRing, ColumnSpec, ReplaySchema, SymmetricReplay

SCALAR, FLAG = ColumnSpec(()), ColumnSpec((), "bool")
COLUMNS = {
    "observation.state": ColumnSpec((1,)),
    "observation.images.top": ColumnSpec((1, 1, 3), "uint8"),
    "base_action": ColumnSpec((2,)),
    "action": ColumnSpec((2,)),
    "reward": SCALAR,
    "terminated": FLAG,
    "truncated": FLAG,
    "residual_scale": SCALAR,
    "intervened": FLAG,
    "start": FLAG,
    "success": FLAG,
}
SCHEMA = ReplaySchema(COLUMNS, ["observation.state"])


def episode(number, length, terminated=True, success=False, starts=None):
    """Frame t of episode n has state 100 n + t, action (100 n + t, -t) and reward t + 1."""
    rows = length + 1
    t = np.arange(rows)
    columns = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in COLUMNS.items()}
    columns["observation.state"][:, 0] = 100 * number + t
    columns["observation.images.top"][:, 0, 0, 0] = t
    columns["action"][:] = np.stack([100 * number + t, -t], 1)
    columns["reward"][:] = t + 1
    columns["terminated" if terminated else "truncated"][length - 1] = True
    columns["success"][length - 1] = success
    columns["start"][:] = True if starts is None else np.isin(t, starts)
    return columns


def ring_of(episodes, capacity=100, **kwargs):
    ring = ChunkRing(SCHEMA, capacity, **kwargs)
    for columns in episodes:
        ring.add_episodes(columns, [len(columns["reward"]) - 1], 0.5)
    return ring


def by_state(batch):
    """The windows of a batch by the state that they start from."""
    states = batch["observation"][:, 0].tolist()
    return {state: {k: v[i] for k, v in batch.items()} for i, state in enumerate(states)}


def test_a_terminated_episode_by_hand():
    found = by_state(ring_of([episode(1, 4)]).sample_windows(200, 3, gamma=0.5))
    assert sorted(found) == [100, 101, 102, 103]
    whole = found[100]  # three steps and the state after them
    assert whole["actions"].tolist() == [[100, 0], [101, -1], [102, -2]]
    assert whole["valid"].tolist() == [True, True, True]
    assert whole["reward"] == 1 + 2 / 2 + 3 / 4
    assert whole["next_observation"].tolist() == [103]
    assert (whole["mask"], whole["discount"], whole["window"]) == (1, 1 / 8, 3)
    assert whole["next.observation.images.top"].flatten().tolist() == [3, 0, 0]
    ends = found[101]  # its third step is the last one
    assert ends["valid"].tolist() == [True, True, True]
    assert ends["reward"] == 2 + 3 / 2 + 4 / 4
    assert (ends["mask"], ends["discount"], ends["window"]) == (0, 0, 3)
    cut = found[103]  # one step is left
    assert cut["valid"].tolist() == [True, False, False]
    assert cut["actions"].tolist() == [[103, -3], [0, 0], [0, 0]]
    assert (cut["reward"], cut["mask"], cut["window"]) == (4, 0, 1)


def test_a_truncated_episode_bootstraps_from_its_final_frame():
    found = by_state(ring_of([episode(1, 4, terminated=False)]).sample_windows(200, 3, 0.5))
    assert found[102]["next_observation"].tolist() == [104]
    assert (found[102]["mask"], found[102]["discount"]) == (1, 1 / 4)
    assert found[103]["next_observation"].tolist() == [104]
    assert found[103]["next.observation.images.top"].flatten().tolist() == [4, 0, 0]
    assert (found[103]["mask"], found[103]["discount"]) == (1, 1 / 2)


def test_only_full_windows_if_the_tail_is_dropped():
    ring = ring_of([episode(1, 4), episode(2, 2), episode(3, 3)])
    assert sorted(by_state(ring.sample_windows(200, 3, 0.9, tail="drop"))) == [100, 101, 300]
    assert ring.num_windows(3, "drop") == (3, 0)
    assert ring.num_windows(3) == (9, 0)
    with pytest.raises(ValueError, match="tail='cut' must be pad or drop"):
        ring.sample_windows(1, 3, 0.9, tail="cut")


def test_windows_start_where_the_start_column_allows_it():
    ring = ring_of([episode(1, 5, starts=[0, 3]), episode(2, 5, starts=[])])
    assert sorted(by_state(ring.sample_windows(100, 2, 0.9))) == [100, 103]
    with pytest.raises(ValueError, match="no row of the stored episodes may start a window"):
        ring_of([episode(1, 5, starts=[])]).sample_windows(1, 2, 0.9)


def test_at_least_a_share_of_the_windows_is_positive():
    rare = ring_of([episode(n, 9, success=n == 7) for n in range(10)])
    for _ in range(50):
        batch = rare.sample_windows(32, 3, 0.9, positive_share=0.3)
        assert batch["positive"].sum() >= 10  # ceil(9.6)
        of_success = (batch["observation"][:, 0] // 100) == 7
        assert torch.equal(batch["positive"], of_success)
    many = torch.cat([rare.sample_windows(32, 3, 0.9, 0.0)["positive"] for _ in range(200)])
    assert 0.08 < many.float().mean() < 0.12  # without a share: what is there
    common = ring_of([episode(n, 9, success=n % 2 == 0) for n in range(10)])
    many = torch.cat([common.sample_windows(32, 3, 0.9)["positive"] for _ in range(200)])
    assert 0.48 < many.float().mean() < 0.52  # above the share nothing is changed
    none = ring_of([episode(1, 9)])
    assert not none.sample_windows(32, 3, 0.9, 0.5)["positive"].any()


def test_a_ring_that_is_loaded_knows_its_own_successes(tmp_path):
    ring, other = ring_of([episode(1, 4)]), ring_of([episode(2, 4, success=True)])
    ring.sample_windows(4, 2, 0.9)
    other.save(tmp_path)
    ring.load(tmp_path)  # as many episodes
    assert ring.sample_windows(4, 2, 0.9)["positive"].all()


def test_new_episodes_are_seen_and_evicted_ones_are_not(tmp_path):
    ring = ring_of([episode(1, 4), episode(2, 4)], capacity=10)
    ring.sample_windows(4, 2, 0.9)
    ring.add_episodes(episode(3, 4, success=True), [4], 0.5)
    found = by_state(ring.sample_windows(200, 2, 0.9))
    assert sorted(found) == [200, 201, 202, 203, 300, 301, 302, 303]
    assert {state: bool(w["positive"]) for state, w in found.items()} == {
        state: state >= 300 for state in found
    }
    ring.save(tmp_path)
    other = ring_of([episode(9, 4)], capacity=10)
    other.sample_windows(4, 2, 0.9)
    other.load(tmp_path)
    ours, theirs = (r.sample_windows(50, 2, 0.9)["observation"] for r in (ring, other))
    assert torch.equal(ours, theirs)
    ring.clear()
    with pytest.raises(ValueError, match="no episode has been stored"):
        ring.sample_windows(1, 2, 0.9)


def test_whole_windows_longer_than_every_episode_are_refused():
    ring = ring_of([episode(1, 3), episode(2, 5)])
    ring.sample_windows(1, 5, 0.9, tail="drop")
    with pytest.raises(ValueError, match=r"6 steps is longer than every episode, .* has 5; lower"):
        ring.sample_windows(1, 6, 0.9, tail="drop")
    assert not ring.has_windows(6, "drop")


def test_cut_windows_may_be_longer_than_every_episode():
    ring = ring_of([episode(1, 3)])
    assert ring.num_windows(6) == (3, 0)
    first = by_state(ring.sample_windows(50, 6, 0.5))[100]
    assert first["valid"].tolist() == [True] * 3 + [False] * 3
    assert first["actions"].tolist() == [[100, 0], [101, -1], [102, -2]] + [[0, 0]] * 3
    assert (first["reward"], first["window"], first["discount"]) == (1 + 2 / 2 + 3 / 4, 3, 0)
    with pytest.raises(ValueError, match="no row of the stored episodes may start a window"):
        ring_of([episode(1, 3, starts=[])]).sample_windows(1, 6, 0.9)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    terminated=st.integers(0, 2**12 - 1),
    horizon=st.integers(1, 12),
    gamma=st.sampled_from([0.0, 0.5, 1.0]),
    tail=st.sampled_from(["pad", "drop"]),
)
def test_every_window_is_that_of_its_own_episode(lengths, terminated, horizon, gamma, tail):
    ends = [bool(terminated >> n & 1) for n in range(len(lengths))]
    made = [
        episode(n, length, end, success=end)
        for n, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    ring = ring_of(made, capacity=25)  # wraps around
    if tail == "drop" and horizon > max(ring.episode_lengths):
        with pytest.raises(ValueError, match="longer than every episode"):
            ring.sample_windows(1, horizon, gamma, tail=tail)
        return
    stored = range(len(lengths) - len(ring.episode_lengths), len(lengths))
    batch = ring.sample_windows(64, horizon, gamma, tail=tail)
    for i in range(64):
        n, t = divmod(int(batch["observation"][i, 0]), 100)
        assert n in stored
        m = min(horizon, lengths[n] - t)
        assert tail == "pad" or m == horizon
        assert batch["valid"][i].tolist() == [k < m for k in range(horizon)]
        actions = [[100 * n + t + k, -(t + k)] if k < m else [0, 0] for k in range(horizon)]
        assert batch["actions"][i].tolist() == actions
        assert batch["reward"][i] == sum(gamma**k * (t + k + 1) for k in range(m))
        assert batch["next_observation"][i].tolist() == [100 * n + t + m]
        mask = 0.0 if ends[n] and t + m == lengths[n] else 1.0
        assert batch["mask"][i] == mask
        assert batch["discount"][i] == gamma**m * mask
        assert batch["positive"][i] == ends[n]


def test_a_return_may_be_longer_than_the_chunk():
    found = by_state(ring_of([episode(1, 4)]).sample_windows(200, 1, gamma=0.5, n_step=3))
    whole = found[100]  # one action, three rewards and the state after them
    assert whole["actions"].tolist() == [[100, 0]]
    assert whole["reward"] == 1 + 2 / 2 + 3 / 4
    assert whole["next_observation"].tolist() == [103]
    assert (whole["discount"], whole["window"]) == (1 / 8, 3)
    cut = found[103]
    assert (cut["reward"], cut["discount"], cut["window"]) == (4, 0, 1)
    dropped = ring_of([episode(1, 4)]).sample_windows(200, 1, 0.5, tail="drop", n_step=3)
    assert sorted(by_state(dropped)) == [100, 101]


def test_a_ring_without_a_window_of_n_steps_leaves_all_to_the_other():
    short, long = ring_of([episode(1, 4)]), ring_of([episode(2, 10)])
    for replay in (SymmetricReplay(short, long), SymmetricReplay(long, short)):
        batch = replay.sample_windows(8, 3, 0.9, 0.0, "drop", n_step=6)
        assert (batch["observation"][:, 0] // 100 == 2).all()
        assert len(batch["row"]) == 8


def test_short_episodes_are_sampled_beside_long_ones_unless_whole_windows_are_wanted():
    short, long = ring_of([episode(1, 4)]), ring_of([episode(2, 10)])
    for replay in (SymmetricReplay(short, long), SymmetricReplay(long, short)):
        batch = replay.sample_windows(8, 3, 0.9, 0.0, "pad", n_step=6)
        assert (batch["observation"][:, 0] // 100 == 1).sum() == 4


def oldest_first(monkeypatch, ring):
    """Every draw is of the oldest that may be drawn."""
    monkeypatch.setattr(ring, "_numbers", lambda count, _: torch.zeros(count, dtype=torch.int64))
    return ring


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize(("size", "parts"), [(64, 1), (16, 4), (4, 16), (1, 64), (3, 16), (5, 3)])
def test_micro_batches_have_the_halves_and_the_positive_windows_of_one_batch(
    monkeypatch, size, parts, share
):
    """Only those that the share asks for are positive."""
    rings = [
        oldest_first(monkeypatch, ring_of([episode(n, 9), episode(n + 2, 9, success=True)]))
        for n in (1, 2)
    ]

    def counts(rings, batch_size, turns):
        drawn = [
            SymmetricReplay(*rings).sample_windows(batch_size, 3, 0.9, share, "pad", turn=turn)
            for turn in turns
        ]
        assert all(len(batch["row"]) == batch_size for batch in drawn)
        number = torch.cat([batch["observation"][:, 0] for batch in drawn]) // 100
        return [int((number == n).sum()) for n in (1, 2, 3, 4)]

    total = size * parts
    offline, online = total // 2, total - total // 2
    positive = [math.ceil(share * half) for half in (offline, online)]
    expected = [offline - positive[0], online - positive[1], *positive]
    assert counts(rings, size, range(parts)) == counts(rings, total, [0]) == expected
    alone = [ring_of([]), rings[1]]  # then all are online
    positive = math.ceil(share * total)
    assert counts(alone, size, range(parts)) == [0, total - positive, 0, positive]


def test_the_halves_are_drawn_independently():
    replay = SymmetricReplay(*(ring_of([episode(n, 90)], capacity=200) for n in (1, 2)))
    replay.seed(3)
    rows = replay.sample_windows(32, 3, 0.9, 0.0, "pad")["row"]
    assert not torch.equal(rows[:16], rows[16:])
