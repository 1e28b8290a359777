import os
import pathlib
import tempfile

import numpy as np
import pytest

from pld_ray.rollout.offline_cache import OfflineCache, OfflineCacheError

IDENTITY = {
    "format_version": 2,
    "environment": {"task": "a"},
    "base_policy": "f00d",
    "warmup_steps": 5,
}


def episode(length, value):
    rows = np.full((length + 1, 3), value, dtype=np.float32)
    return {"observation.state": rows, "reward": np.zeros(length + 1, dtype=np.float32)}


@pytest.fixture
def cache(tmp_path):
    cache = OfflineCache(tmp_path / "cache", IDENTITY)
    cache.save([episode(2, 1), episode(3, 2)], [episode(4, 3)], rounds=[10, 7])
    return cache


def test_round_trip(cache):
    offline, warmup, rounds = cache.load()
    assert [len(e["reward"]) for e in offline] == [3, 4]
    assert offline[1]["observation.state"][0, 0] == 2
    assert warmup[0]["observation.state"].shape == (5, 3)
    assert rounds == [10, 7]


@pytest.mark.parametrize("key", ["environment", "base_policy", "warmup_steps", "format_version"])
def test_a_foreign_cache_is_refused_by_name(cache, key):
    other = OfflineCache(cache.folder, {**IDENTITY, key: "something else"})
    with pytest.raises(OfflineCacheError, match=f"collected with {key}=.*delete this one"):
        other.load()


def test_a_changed_byte_is_detected_and_the_file_is_named(cache):
    file = cache.folder / "offline.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(OfflineCacheError, match=r"offline\.safetensors is damaged: its checksum"):
        cache.load()


def test_a_truncated_or_missing_file_is_named(cache):
    meta = cache.folder / "collection.json"
    text = meta.read_text()
    meta.write_text(text[: len(text) // 2])
    with pytest.raises(OfflineCacheError, match=r"collection\.json is damaged"):
        cache.load()
    meta.write_text(text)
    (cache.folder / "warmup.safetensors").unlink()
    with pytest.raises(OfflineCacheError, match=r"warmup\.safetensors is damaged"):
        cache.load()


def test_a_cache_that_another_run_put_there_meanwhile_stays(cache):
    cache.save([episode(1, 9)], [], rounds=[1])
    offline, _, rounds = cache.load()
    assert [len(e["reward"]) for e in offline] == [3, 4]
    assert rounds == [10, 7]
    assert [p.name for p in cache.folder.parent.iterdir()] == ["cache"]


def test_an_empty_folder_becomes_the_cache(tmp_path):
    cache = OfflineCache(tmp_path, IDENTITY)
    cache.save([episode(1, 9)], [], rounds=[1])
    assert cache.load()[2] == [1]


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path):
    mine = tmp_path / "thesis" / "chapter.tex"
    mine.parent.mkdir()
    mine.write_text("ten years of work")
    cache = OfflineCache(mine.parent, IDENTITY)
    for attempt in (cache.check_writable, lambda: cache.save([episode(1, 9)], [], rounds=[1])):
        with pytest.raises(OfflineCacheError, match=r"thesis is there and no cache.*an empty"):
            attempt()
    assert mine.read_text() == "ten years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["thesis"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OfflineCacheError, match=r"file is there and no cache"):
        OfflineCache(tmp_path / "file", IDENTITY).check_writable()
    with pytest.raises(OfflineCacheError, match=r"cannot be written \(.*file is no folder"):
        OfflineCache(tmp_path / "file" / "cache", IDENTITY).check_writable()


def test_what_arrives_between_the_check_and_the_move_is_not_overwritten(tmp_path, monkeypatch):
    cache = OfflineCache(tmp_path / "cache", IDENTITY)
    check = cache.check_writable

    def then_someone_writes():
        check()
        cache.folder.mkdir()
        (cache.folder / "theirs").write_text("kept")

    monkeypatch.setattr(cache, "check_writable", then_someone_writes)
    with pytest.raises(OfflineCacheError, match="cannot be written"):
        cache.save([episode(1, 9)], [], rounds=[1])
    assert (cache.folder / "theirs").read_text() == "kept"


def test_a_cache_is_for_all_who_share_the_folder(tmp_path):
    before = os.umask(0o002)
    try:
        cache = OfflineCache(tmp_path / "cache" / "lift", IDENTITY)
        cache.save([episode(1, 9)], [], rounds=[1])
    finally:
        os.umask(before)
    assert cache.folder.stat().st_mode & 0o777 == 0o775
    assert {path.stat().st_mode & 0o777 for path in cache.folder.iterdir()} == {0o664}


@pytest.mark.parametrize("hidden", ["collection.json", "offline.safetensors", "."])
def test_a_cache_that_may_not_be_read_is_not_called_damaged(hidden):
    with tempfile.TemporaryDirectory() as shared:  # pytest's own folders are this user's alone
        os.chmod(shared, 0o755)
        cache = OfflineCache(pathlib.Path(shared) / "cache", IDENTITY)
        cache.save([episode(1, 9)], [], rounds=[1])
        secret = (cache.folder / hidden).resolve()
        secret.chmod(0)
        is_root = os.geteuid() == 0  # who may read everything
        if is_root:
            os.seteuid(65534)
        try:
            for look in (cache.exists, cache.load) if hidden == "." else (cache.load,):
                with pytest.raises(OfflineCacheError, match="may not be read") as raised:
                    look()
        finally:
            if is_root:
                os.seteuid(0)
            secret.chmod(0o755)
    assert f"chmod -R a+rX {secret}`" in str(raised.value)
    assert "damaged" not in str(raised.value)
