"""Weights of vision encoders, from files as users have them."""

import re

import pytest
import torch
from safetensors.torch import save_file
from torchvision import models

from pld_ray.networks.encoders import build_backbone

NAME = "torchvision:resnet18"


@pytest.fixture(scope="module")
def resnet18():
    """All 122 tensors of torchvision's network, as its published files have them."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return models.resnet18(weights=None).state_dict()


@pytest.fixture(scope="module")
def reference(resnet18):
    return build_backbone(NAME, None, 32, seed=1).fingerprint()  # same seed, same draws


def write(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_torchvision_weights_come_from_a_local_file(tmp_path, suffix, resnet18, reference):
    loaded = build_backbone(NAME, write(tmp_path / f"w{suffix}", resnet18), 32, seed=99)
    assert loaded.fingerprint() == reference
    assert torch.equal(loaded.layers.state_dict()["model.conv1.weight"], resnet18["conv1.weight"])


def test_the_head_does_not_matter(tmp_path, resnet18, reference):
    without = {k: v for k, v in resnet18.items() if not k.startswith("fc.")}
    other = without | {"fc.weight": torch.zeros(7, 512), "fc.bias": torch.zeros(7)}
    for state in (without, other):
        file = write(tmp_path / "w.safetensors", state)
        assert build_backbone(NAME, file, 32, seed=99).fingerprint() == reference


def test_files_without_batch_counters_are_read(tmp_path, resnet18, reference):
    state = {k: v for k, v in resnet18.items() if not k.endswith("num_batches_tracked")}
    file = write(tmp_path / "w.pth", state)
    assert build_backbone(NAME, file, 32, seed=99).fingerprint() == reference


@pytest.mark.parametrize("name", ["resnet10", "cnn"])
def test_our_own_weights_make_the_round_trip(tmp_path, name):
    source = build_backbone(name, None, 16, seed=3)
    file = write(tmp_path / "w.safetensors", source.layers.state_dict())
    assert build_backbone(name, file, 16, seed=4).fingerprint() == source.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.conv1.weight": None}, "1 keys are missing: blocks.1.conv1.weight"),
        ({"fc.weight": torch.zeros(1)}, "1 keys are not expected: fc.weight"),
        ({"conv_init.weight": torch.zeros(64, 3, 3, 3)}, "have another shape: conv_init.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, message):
    state = build_backbone("resnet10", None, 32, seed=0).layers.state_dict() | change
    state = {k: v for k, v in state.items() if v is not None}
    file = write(tmp_path / "w.safetensors", state)
    with pytest.raises(ValueError, match=f"{re.escape(file)} does not fit 'resnet10'.*{message}"):
        build_backbone("resnet10", file, 32, seed=0)


def test_only_the_first_keys_are_listed(tmp_path):
    file = write(tmp_path / "w.safetensors", {"a": torch.zeros(1)})
    with pytest.raises(ValueError) as error:
        build_backbone("resnet10", file, 32, seed=0)
    assert "36 keys are missing: blocks.0.conv1.weight, blocks.0.conv2.weight, blocks.0.norm1" in (
        str(error.value)
    )
    assert len(str(error.value)) < 400 + len(file)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_files_of_something_else_are_refused(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: no such file"):
        build_backbone("resnet10", str(path), 32, seed=0)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a file of tensors"):
        build_backbone("resnet10", str(path), 32, seed=0)


def test_a_pth_file_cannot_run_code_or_nest(tmp_path):
    path = tmp_path / "w.pth"
    torch.save(models.resnet.BasicBlock(4, 4), path)  # a pickled module
    with pytest.raises(ValueError, match="not a file of tensors"):
        build_backbone("resnet10", str(path), 32, seed=0)
    torch.save({"state_dict": {"a": torch.zeros(1)}}, path)
    with pytest.raises(ValueError, match="not a file of tensors by name"):
        build_backbone("resnet10", str(path), 32, seed=0)
