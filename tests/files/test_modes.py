"""On a folder that colleagues share: what one writes the others may read, or are told who can."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pwd
import tempfile

import numpy as np
import pytest
import torch

from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import MANIFEST_FILE, CheckpointError, check_manifest, write_manifest
from pld_ray.files.state_tree import save_tree
from pld_ray.files.tensors import save_tensors

NOBODY = 65534


@pytest.fixture
def shared():
    """Pytest's own folders are this user's alone."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name)
        path.chmod(0o755)
        yield path


@contextlib.contextmanager
def as_a_colleague():
    """Root may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@contextlib.contextmanager
def umask(value):
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, mask, expected):
    with umask(mask):
        write_json_atomically(tmp_path / "a.json", {})
        save_tree(tmp_path / "b", {"a": np.zeros(3)})
        save_tensors({"a": torch.zeros(3)}, tmp_path / "c.safetensors")
        write_manifest(tmp_path)
    names = {"a.json", "b.json", "b.safetensors", "c.safetensors", MANIFEST_FILE}
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(names, expected)


@pytest.mark.parametrize("hidden", ["learner.safetensors", MANIFEST_FILE, "."])
def test_a_checkpoint_that_may_not_be_read_is_not_called_damaged(shared, hidden):
    checkpoint = shared / "step_1"
    checkpoint.mkdir()
    save_tree(checkpoint / "learner", {"a": np.zeros(3)})
    write_manifest(checkpoint)
    secret = checkpoint / hidden
    before = secret.stat().st_mode
    secret.chmod(0)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    with as_a_colleague(), pytest.raises(CheckpointError, match="may not be read") as raised:
        check_manifest(checkpoint)
    said = str(raised.value)
    assert f"{secret.resolve()} is {owner}'s" in said
    assert f"chmod -R a+rX {secret.resolve()}`" in said
    assert "damaged" not in said
    secret.chmod(before)
    assert check_manifest(checkpoint)
