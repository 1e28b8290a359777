"""Rings on disk: the same next batch after a reload, and damage that is named."""

import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, filled, lengths, make_episode, schema

from pld_ray.replay import FrameRing, ReplayFileError, storage

HISTORIES = {
    "empty": [],
    "partly full": [[(5, True)], [(7, False)]],
    "wrapped": [[(9, True), (8, False)], [(7, True), (6, False)], [(5, True)]],
}


def same_samples(one, other):
    for n_step in (1, 3):
        a, b = one.sample(64, n_step, GAMMA), other.sample(64, n_step, GAMMA)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_a_restored_ring_samples_the_same_next_batch(tmp_path, history):
    ring, _ = filled(30, history)
    if len(ring):
        ring.sample(16)  # the generator is somewhere in its stream
    ring.save(tmp_path / "ring")
    other = FrameRing(schema(), 30, seed=99)
    other.load(tmp_path / "ring")
    assert other.episode_lengths == ring.episode_lengths
    if len(ring):
        same_samples(ring, other)
    # and both go on alike, evictions included
    for number in range(50, 54):
        episode = make_episode(number, 8, number % 2 == 0)
        for r in (ring, other):
            r.add_episodes(episode, lengths([episode]), GAMMA)
        same_samples(ring, other)


def test_images_come_back(tmp_path):
    ring = FrameRing(schema(images=True), 20, seed=0)
    for number in range(6):
        episode = make_episode(number, 6, True, images=True)
        ring.add_episodes(episode, [6], GAMMA)
    ring.save(tmp_path)
    other = FrameRing(schema(images=True), 25)
    other.load(tmp_path)
    same_samples(ring, other)


def test_saving_again_replaces_the_ring_and_leaves_no_other_file(tmp_path):
    ring, _ = filled(30, HISTORIES["partly full"])
    ring.save(tmp_path)
    first = {p.name for p in tmp_path.iterdir()}
    episode = make_episode(7, 4, True)
    ring.add_episodes(episode, [4], GAMMA)
    ring.save(tmp_path)
    second = {p.name for p in tmp_path.iterdir()}
    assert len(first) == len(second) == 2
    other = FrameRing(schema(), 30)
    other.load(tmp_path)
    same_samples(ring, other)


def test_a_save_that_dies_leaves_the_former_ring_readable(tmp_path, monkeypatch):
    ring, _ = filled(30, HISTORIES["partly full"])
    ring.save(tmp_path)
    reference = FrameRing(schema(), 30)
    reference.load(tmp_path)
    episode = make_episode(7, 4, True)
    ring.add_episodes(episode, [4], GAMMA)

    def full_disk(path, *args):
        raise OSError("no space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full_disk)
    with pytest.raises(OSError, match="no space"):
        ring.save(tmp_path)
    monkeypatch.undo()
    survivor = FrameRing(schema(), 30)
    survivor.load(tmp_path)
    same_samples(reference, survivor)


def saved(tmp_path):
    ring, _ = filled(30, HISTORIES["partly full"])
    ring.save(tmp_path)
    return next(tmp_path.glob("rows-*.safetensors")), tmp_path / storage.META_FILE


def load(tmp_path, capacity=30):
    FrameRing(schema(), capacity).load(tmp_path)


def test_one_flipped_byte_is_found_and_the_file_named(tmp_path):
    data, _ = saved(tmp_path)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(ReplayFileError, match=f"{data.name}: the checksum differs"):
        load(tmp_path)


def test_a_truncated_file_is_found(tmp_path):
    data, _ = saved(tmp_path)
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(ReplayFileError, match="checksum"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ring\.json: no such file"):
        load(tmp_path / "nothing")
    data, _ = saved(tmp_path)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=data.name):
        load(tmp_path)


def test_a_foreign_json_is_refused(tmp_path):
    _, meta = saved(tmp_path)
    for content in ("{}", "[1, 2]", "not json", '{"format": "something else"}'):
        meta.write_text(content)
        with pytest.raises(ReplayFileError, match=r"ring\.json"):
            load(tmp_path)


def test_other_columns_are_named(tmp_path):
    _, meta = saved(tmp_path)
    description = json.loads(meta.read_text())
    description["schema"]["columns"]["action"] = [[9], "float32"]
    meta.write_text(json.dumps(description))
    with pytest.raises(ReplayFileError, match="column 'action'"):
        load(tmp_path)


def test_a_ring_that_does_not_fit_is_refused_and_a_larger_one_takes_it(tmp_path):
    saved(tmp_path)  # 14 rows
    with pytest.raises(ReplayFileError, match="holds 14 rows but the capacity is 10"):
        load(tmp_path, capacity=10)
    load(tmp_path, capacity=100)
