"""Rings on disk: the same next batch after a reload, and damage that is named."""

import json
import pathlib
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, filled, lengths, make_episode, schema

from pld_ray.replay import ColumnSpec, FrameRing, ReplayFileError, ReplaySchema, storage

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
    """Two segments; the first and `ring.json`."""
    ring, _ = filled(30, HISTORIES["partly full"])
    ring.save(tmp_path)
    first = next(tmp_path.glob("segment-*.safetensors"))
    ring.add_episodes(make_episode(7, 4, True), [4], GAMMA)
    ring.save(tmp_path)
    assert len(list(tmp_path.glob("segment-*.safetensors"))) == 2
    return first, tmp_path / storage.META_FILE


def load(tmp_path, capacity=30):
    FrameRing(schema(), capacity).load(tmp_path)


def edit(meta, **entries):
    """Change entries of `ring.json` and sign it again."""
    description = json.loads(meta.read_text()) | entries
    del description["checksum"]
    meta.write_text(json.dumps({**description, "checksum": storage.checksum(description)}))


def test_the_files_are_what_the_safetensors_library_reads(tmp_path):
    ring, model = filled(30, HISTORIES["wrapped"])
    ring.save(tmp_path)
    tensors = load_file(next(tmp_path.glob("segment-*.safetensors")))
    assert tensors.keys() == {"rows.0", "rows.1"}
    rows = torch.cat([tensors["rows.0"], tensors["rows.1"]])
    ids = [i for e in model.episodes for i in e["observation.state"][:, 0].tolist()]
    assert schema().view(rows, "observation.state")[:, 0].tolist() == ids


def test_every_flipped_byte_is_found_and_the_file_named(tmp_path):
    for path in saved(tmp_path):
        original = path.read_bytes()
        for place in range(0, len(original), max(1, len(original) // 40)):
            content = bytearray(original)
            content[place] ^= 1
            path.write_bytes(content)
            with pytest.raises(ReplayFileError, match=path.name.replace(".", r"\.")):
                load(tmp_path)
        path.write_bytes(original)
    load(tmp_path)


def test_a_cut_off_file_is_found(tmp_path):
    data, meta = saved(tmp_path)
    content = data.read_bytes()
    data.write_bytes(content[:-10])
    size = len(content)
    with pytest.raises(ReplayFileError, match=rf"{data.name}: it has {size - 10} bytes.* {size};"):
        load(tmp_path)
    data.write_bytes(content)
    meta.write_bytes(meta.read_bytes()[:-10])
    with pytest.raises(ReplayFileError, match=r"ring\.json: not readable as JSON"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ring\.json: no such file"):
        load(tmp_path / "nothing")
    data, _ = saved(tmp_path)
    data.unlink()
    with pytest.raises(FileNotFoundError, match=data.name):
        load(tmp_path)


def test_a_refused_load_leaves_the_ring_as_it_was(tmp_path):
    data, _ = saved(tmp_path)
    data.write_bytes(b"x" * data.stat().st_size)
    batches = [[(4, True), (6, False)]]
    ring, untouched = filled(30, batches)[0], filled(30, batches)[0]
    with pytest.raises(ReplayFileError, match="checksum"):
        ring.load(tmp_path)
    same_samples(ring, untouched)


def test_a_foreign_json_is_refused(tmp_path):
    _, meta = saved(tmp_path)
    for content in ("{}", "[1, 2]", "not json", '{"format": "something else"}'):
        meta.write_text(content)
        with pytest.raises(ReplayFileError, match=r"ring\.json"):
            load(tmp_path)


def test_another_format_version_is_refused(tmp_path):
    _, meta = saved(tmp_path)
    edit(meta, version=1)
    with pytest.raises(ReplayFileError, match="format version 1, need 2; continue with"):
        load(tmp_path)


def test_a_ring_of_another_kind_of_device_is_read_and_draws_from_a_stream_of_its_own(tmp_path):
    _, meta = saved(tmp_path)
    here = FrameRing(schema(), 30)
    here.load(tmp_path)
    drawn = []
    for stream in (0, 1, 0):
        edit(meta, generator=bytes([stream] * 16).hex())  # a GPU's state has 16 bytes
        other = FrameRing(schema(), 30, seed=len(drawn))
        other.load(tmp_path)
        assert torch.equal(other.observations(), here.observations())
        drawn.append(other.sample(64)["observation"])
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_other_columns_are_named(tmp_path):
    _, meta = saved(tmp_path)
    description = json.loads(meta.read_text())["schema"]
    columns = description["columns"] | {"action": [[9], "float32"]}
    edit(meta, schema=description | {"columns": columns})
    with pytest.raises(ReplayFileError, match="column 'action'"):
        load(tmp_path)
    edit(meta, schema=description | {"row": description["row"][::-1]})
    with pytest.raises(ReplayFileError, match="row, which columns lie in which order"):
        load(tmp_path)


def test_a_ring_that_does_not_fit_is_refused_and_a_larger_one_takes_it(tmp_path):
    saved(tmp_path)  # 19 rows
    with pytest.raises(ReplayFileError, match="holds 19 rows but the capacity is 18"):
        load(tmp_path, capacity=18)
    for capacity in (19, 100):
        load(tmp_path, capacity=capacity)


def test_a_large_ring_is_saved_and_restored_within_seconds(tmp_path):
    columns = schema().columns | {"observation.environment_state": ColumnSpec((31,))}
    wide = ReplaySchema(columns | {"action": ColumnSpec((7,))}, schema().observation_keys)
    ring = FrameRing(wide, 250_000)
    rows = {n: np.ones((50_000, *c.shape), c.dtype) for n, c in wide.columns.items()}
    rows["terminated"][:] = False
    for _ in range(5):
        ring.add_episodes(rows, [199] * 250, GAMMA)
    start = time.perf_counter()
    ring.save(tmp_path)
    restored = FrameRing(wide, 250_000)
    middle = time.perf_counter()
    restored.load(tmp_path)
    end = time.perf_counter()
    assert restored.num_rows == ring.num_rows == 250_000
    assert middle - start < 5
    assert end - middle < 5
    same_samples(ring, restored)
