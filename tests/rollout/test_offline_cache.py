import json

import numpy as np
import pytest

from pld_ray.rollout.offline_cache import OfflineCache, OfflineCacheError

IDENTITY = {"environment": {"task": "a"}, "base_policy": "f00d", "warmup_steps": 5}


def episode(length, value):
    rows = np.full((length + 1, 3), value, dtype=np.float32)
    return {"observation.state": rows, "reward": np.zeros(length + 1, dtype=np.float32)}


@pytest.fixture
def cache(tmp_path):
    cache = OfflineCache(tmp_path / "cache", IDENTITY)
    cache.save([episode(2, 1), episode(3, 2)], [episode(4, 3)], env_steps=17)
    return cache


def test_round_trip(cache):
    offline, warmup, env_steps = cache.load()
    assert [len(e["reward"]) for e in offline] == [3, 4]
    assert offline[1]["observation.state"][0, 0] == 2
    assert warmup[0]["observation.state"].shape == (5, 3)
    assert env_steps == 17


@pytest.mark.parametrize("key", ["environment", "base_policy", "warmup_steps", "format_version"])
def test_a_foreign_cache_is_refused_by_name(cache, key):
    other = OfflineCache(cache.folder, IDENTITY)
    other.identity[key] = "something else"
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


def test_saving_again_replaces_the_whole_folder_and_leaves_nothing_beside_it(cache):
    cache.save([episode(1, 9)], [], env_steps=1)
    offline, warmup, _ = cache.load()
    assert offline[0]["observation.state"][0, 0] == 9
    assert warmup == []
    assert [p.name for p in cache.folder.parent.iterdir()] == ["cache"]
    assert json.loads((cache.folder / "collection.json").read_text())["env_steps"] == 1
