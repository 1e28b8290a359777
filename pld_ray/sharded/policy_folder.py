"""A trained policy as LeRobot loads it: the folder that it came from with other weights."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pld_ray.files.tensors import save_tensors
from pld_ray.policies.checkpoint import CONFIG, WEIGHTS
from pld_ray.sharded.trainee import Trainee

PROVENANCE_FILE = "PROVENANCE.json"
"""Beside the policy: what it was made from. No part of its fingerprint."""


def write_policy_folder(
    trainee: Trainee,
    state: Mapping[str, Tensor],
    folder: pathlib.Path,
    provenance: Mapping[str, Any],
) -> None:
    """Configuration and processors as they were, these weights, and what they came from.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = trainee.checkpoint
    for file in (checkpoint.directory / CONFIG, *checkpoint.processors):
        shutil.copyfile(file, folder / file.name)
    kept = {name: state[name].detach().clone().contiguous() for name in trainee.stored}
    save_tensors(kept, folder / WEIGHTS)
    (folder / PROVENANCE_FILE).write_text(json.dumps(dict(provenance), indent=2) + "\n")
