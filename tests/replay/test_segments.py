"""Saves that write only what is new, in folders of which each is complete by itself."""

import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, ListModel, filled, make_episode, schema

from pld_ray.replay import FrameRing, segments

ROW_BYTES = 4 * schema().row_width


def add(ring, number, length=9):
    ring.add_episodes(make_episode(number, length, number % 2 == 0), [length], GAMMA)


def restored(folder, capacity=1000):
    ring = FrameRing(schema(), capacity, seed=99)
    ring.load(folder)
    return ring


def inodes(*folders):
    return {p.stat().st_ino: p.stat().st_size for f in folders for p in f.glob("segment-*")}


def same(ring, other):
    assert ring.episode_lengths == other.episode_lengths
    one, two = (r.gather(r.start_rows(), 2, GAMMA) for r in (ring, other))
    for name in ("rows", "next_rows", "reward", "discount"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    if len(ring):
        assert torch.equal(ring.sample(16)["observation"], other.sample(16)["observation"])


def test_a_second_save_writes_only_the_new_rows(tmp_path):
    ring = FrameRing(schema(), 50_000)
    for number in range(200):
        add(ring, number, 99)
    ring.save(tmp_path / "1")
    assert sum(inodes(tmp_path / "1").values()) >= 20_000 * ROW_BYTES
    for number in range(200, 210):
        add(ring, number, 99)
    ring.save(tmp_path / "2")
    new = inodes(tmp_path / "2").keys() - inodes(tmp_path / "1").keys()
    written = sum(inodes(tmp_path / "2")[inode] for inode in new)
    assert 1000 * ROW_BYTES <= written <= 1000 * ROW_BYTES + 1000  # and a header
    ring.save(tmp_path / "3")
    assert inodes(tmp_path / "3") == inodes(tmp_path / "2")
    shutil.rmtree(tmp_path / "1")
    shutil.rmtree(tmp_path / "3")
    same(restored(tmp_path / "2", 50_000), ring)


def test_a_restored_ring_goes_on_from_the_files_that_it_was_restored_from(tmp_path):
    ring, _ = filled(1000, [[(9, True)] * 20])
    ring.save(tmp_path / "1")
    other = restored(tmp_path / "1")
    add(other, 30)
    other.save(tmp_path / "2")
    assert inodes(tmp_path / "2").keys() > inodes(tmp_path / "1").keys()
    assert len(inodes(tmp_path / "2")) == 2
    same(restored(tmp_path / "2"), other)


def test_a_folder_that_was_renamed_is_still_built_on(tmp_path):
    ring, _ = filled(1000, [[(9, True)] * 20])
    ring.save(tmp_path / ".hidden" / "online")
    os.rename(tmp_path / ".hidden", tmp_path / "step_1")
    add(ring, 30)
    ring.save(tmp_path / ".hidden" / "online")
    first, second = inodes(tmp_path / "step_1/online"), inodes(tmp_path / ".hidden/online")
    assert second.keys() > first.keys()


@pytest.mark.parametrize("harm", ["remove", "cut off"])
def test_rows_whose_file_is_gone_are_written_again(tmp_path, harm):
    ring, _ = filled(1000, [[(9, True)] * 20])
    ring.save(tmp_path / "1")
    add(ring, 30)
    (file,) = (tmp_path / "1").glob("segment-*")
    if harm == "remove":
        shutil.rmtree(tmp_path / "1")
    else:
        os.truncate(file, 100)
    ring.save(tmp_path / "2")
    same(restored(tmp_path / "2"), ring)


def test_without_hard_links_the_files_are_copied(tmp_path, monkeypatch):
    ring, _ = filled(1000, [[(9, True)] * 20])
    ring.save(tmp_path / "1")
    add(ring, 30)

    def refuse(*args, **kwargs):
        raise OSError(18, "Invalid cross-device link")

    def rewrite(*args):
        raise AssertionError("an episode that is on disk was written from memory")

    monkeypatch.setattr(os, "link", refuse)
    stored = ring._stored
    monkeypatch.setattr(ring, "_stored", lambda f, n: rewrite() if f < 20 else stored(f, n))
    ring.save(tmp_path / "2")
    assert not inodes(tmp_path / "1").keys() & inodes(tmp_path / "2").keys()
    assert len(inodes(tmp_path / "2")) == 2
    shutil.rmtree(tmp_path / "1")
    same(restored(tmp_path / "2"), ring)


@pytest.mark.parametrize("fit", [9, 10, 11])
def test_evicted_episodes_are_not_restored_and_their_segments_go(tmp_path, fit):
    ring = FrameRing(schema(), 10 * fit)
    for number in range(60):
        add(ring, number)
        if number % 3 == 2:
            ring.save(tmp_path)
            # saved in threes: segment k holds episodes 3 k .. 3 k + 2
            oldest, newest = max(0, number - fit + 1) // 3, number // 3
            assert len(inodes(tmp_path)) == newest - oldest + 1
            same(restored(tmp_path, 10 * fit), ring)


@pytest.mark.parametrize("fate", ["restored", "gone"])
def test_a_segment_that_is_partly_evicted_is_built_on(tmp_path, fate):
    ring, _ = filled(100, [[(9, True)] * 8])
    ring.save(tmp_path / "1")
    for number in range(10, 15):  # evicts three of the eight
        add(ring, number)
    ring.save(tmp_path / "2")
    assert len(inodes(tmp_path / "2")) == 2
    if fate == "restored":
        other = restored(tmp_path / "2", 100)
        same(other, ring)
        ring = other
    else:
        shutil.rmtree(tmp_path / "1")
        shutil.rmtree(tmp_path / "2")
    for number in (20, 21):
        add(ring, number)
    ring.save(tmp_path / "3")
    rows = sum(inodes(tmp_path / "3").values()) // ROW_BYTES
    assert rows // 10 == (15 if fate == "restored" else 10)  # episodes, evicted ones included
    same(restored(tmp_path / "3", 100), ring)


def test_many_saves_keep_few_segments_and_merge_seldom(tmp_path):
    ring = FrameRing(schema(), 100_000)
    seen, written, merges = set(), 0, 0
    for number in range(200):
        add(ring, number)
        ring.save(tmp_path)
        found = inodes(tmp_path)
        assert len(found) <= segments.MAX_SEGMENTS
        new = {i: size for i, size in found.items() if i not in seen}
        merges += len(new) > 1
        rows = sum(size // ROW_BYTES for size in new.values())
        written += rows
        seen = set(found)
    assert 1 <= merges <= 7
    assert written < 8 * 2000  # every row a few times, not 100 times
    same(restored(tmp_path, 100_000), ring)


def test_saving_into_one_folder_leaves_only_what_the_ring_needs(tmp_path):
    ring, _ = filled(1000, [[(9, True)] * 20])
    (tmp_path / ".partial-segment.safetensors").write_text("of a save that died")
    (tmp_path / "notes.txt").write_text("someone else's")
    ring.save(tmp_path)
    ring.save(tmp_path)
    kinds = sorted(p.name.partition("-")[0] for p in tmp_path.iterdir())
    assert kinds == ["notes.txt", "ring.json", "segment"]
    other, _ = filled(1000, [[(3, True)]])
    other.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    same(restored(tmp_path), other)


def test_a_cleared_ring_saves_what_it_holds_then(tmp_path):
    ring, _ = filled(1000, [[(9, True)] * 20])
    ring.save(tmp_path)
    ring.clear()
    ring.save(tmp_path)
    assert not inodes(tmp_path)
    add(ring, 3)
    ring.save(tmp_path)
    same(restored(tmp_path), ring)


class SavedRings(RuleBasedStateMachine):
    """A ring with merges at five segments; folders are saved to, renamed, deleted and restored."""

    def __init__(self):
        super().__init__()
        self.limits = segments.MAX_SEGMENTS, segments.MERGED_SEGMENTS
        segments.MAX_SEGMENTS, segments.MERGED_SEGMENTS = 4, 2
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.ring, self.model = FrameRing(schema(), 30, seed=0), ListModel(30)
        self.number = self.folders_made = 0
        self.saved = {}  # folder -> episodes and the sample that follows

    def teardown(self):
        segments.MAX_SEGMENTS, segments.MERGED_SEGMENTS = self.limits
        shutil.rmtree(self.root)

    def new_folder(self):
        self.folders_made += 1
        return self.root / str(self.folders_made)

    def save_to(self, folder):
        self.ring.save(folder)
        state = self.ring.generator.get_state()
        sample = self.ring.sample(8, 3, GAMMA) if len(self.ring) else None
        self.ring.generator.set_state(state)
        self.saved[folder] = list(self.model.episodes), sample
        assert len(list(folder.glob("segment-*"))) <= 4

    @rule(added=st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6))
    def add_episodes(self, added):
        for length, terminated in added:
            episode = make_episode(self.number, length, terminated)
            self.ring.add_episodes(episode, [length], GAMMA)
            self.model.add(episode)
            self.number += 1

    @precondition(lambda self: len(self.ring))
    @rule()
    def draw(self):
        self.ring.sample(4)

    @rule()
    def save_to_a_new_folder(self):
        self.save_to(self.new_folder())

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def save_to_a_former_folder(self, data):
        self.save_to(data.draw(st.sampled_from(sorted(self.saved))))

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def rename(self, data):
        folder, target = data.draw(st.sampled_from(sorted(self.saved))), self.new_folder()
        folder.rename(target)
        self.saved[target] = self.saved.pop(folder)

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def delete(self, data):
        folder = data.draw(st.sampled_from(sorted(self.saved)))
        shutil.rmtree(folder)
        del self.saved[folder]

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), spare=st.integers(0, 20), go_on=st.booleans())
    def restore(self, data, spare, go_on):
        folder = data.draw(st.sampled_from(sorted(self.saved)))
        episodes, sample = self.saved[folder]
        capacity = max(13, sum(len(e["reward"]) for e in episodes)) + spare
        ring, model = restored(folder, capacity), ListModel(capacity)
        model.episodes = list(episodes)
        state = ring.generator.get_state()
        expected = list(model.transitions(2, GAMMA))
        assert len(ring) == len(expected)
        if expected:
            batch = ring.gather(ring.start_rows(), 2, GAMMA).unpack(ring.schema)
            for name, values in batch.items():
                want = np.array([row[name] for row in expected], dtype=np.float64)
                np.testing.assert_allclose(values.double().numpy(), want, rtol=1e-5, atol=1e-5)
            again = ring.sample(8, 3, GAMMA)
            assert all(torch.equal(again[name], sample[name]) for name in sample)
            ring.generator.set_state(state)
        if go_on:
            self.ring, self.model = ring, model


SavedRings.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_saved_rings = SavedRings.TestCase
