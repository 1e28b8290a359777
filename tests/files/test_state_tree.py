import numpy as np
import pytest
import torch

from pld_ray.files.state_tree import StateFileError, load_tree, save_tree

TREE = {
    "state": {0: {"step": torch.tensor(3.0), "moment": np.arange(6, dtype=np.float32)}},
    "groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "fused": True, "params": [0, 1]}],
    "name": "critic",
    "none": None,
    "count": np.int64(7),
}


def test_round_trip_keeps_keys_kinds_and_bits(tmp_path):
    save_tree(tmp_path / "state", TREE)
    back = load_tree(tmp_path / "state")
    assert back["state"][0]["step"].shape == ()
    assert back["state"][0]["step"] == 3.0
    np.testing.assert_array_equal(back["state"][0]["moment"], TREE["state"][0]["moment"])
    assert back["groups"] == TREE["groups"]
    assert isinstance(back["groups"][0]["betas"], tuple)
    assert (back["name"], back["none"], back["count"]) == ("critic", None, 7)


def test_what_cannot_be_kept_without_pickle_is_refused(tmp_path):
    with pytest.raises(TypeError, match="cannot hold a function"):
        save_tree(tmp_path / "state", {"f": test_round_trip_keeps_keys_kinds_and_bits})
    with pytest.raises(TypeError, match="cannot hold a ndarray"):
        save_tree(tmp_path / "state", {"f": np.array([{}], dtype=object)})


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_damaged_or_missing_file_is_named(tmp_path, suffix):
    save_tree(tmp_path / "state", TREE)
    file = tmp_path / f"state{suffix}"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(StateFileError, match=r"state\.json or \.safetensors is missing or damaged"):
        load_tree(tmp_path / "state")
    file.unlink()
    with pytest.raises(StateFileError, match="missing or damaged"):
        load_tree(tmp_path / "state")
