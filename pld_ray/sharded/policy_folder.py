"""A trained policy as LeRobot loads it: the folder that it came from with other weights."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pld_ray.config import ConfigError
from pld_ray.files.tensors import save_tensors
from pld_ray.policies.checkpoint import CONFIG, WEIGHTS, PolicyCheckpoint
from pld_ray.sharded.trainee import Trainee, check_prefixes

PROVENANCE_FILE = "PROVENANCE.json"
"""Beside the policy: what it was made from. No part of its fingerprint."""
NAMED_ALIKE = ("act", "diffusion")
"""Types whose files have the parameters' own names, all of them."""


def write_policy_folder(
    trainee: Trainee,
    state: Mapping[str, Tensor],
    folder: pathlib.Path,
    provenance: Mapping[str, Any],
    image_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Configuration and processors as they were, these weights in the precision that they were
    learnt in, and what they came from.

    Args:
        trainee: whose folder it was.
        state: its weights.
        folder: is made.
        provenance: what the weights came from.
        image_shapes: (C, H, W) that cameras have from now on, by the policy's names.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = trainee.checkpoint
    for file in (checkpoint.directory / CONFIG, *checkpoint.processors):
        shutil.copyfile(file, folder / file.name)
    declare(folder / CONFIG, image_shapes or {}, getattr(trainee.policy.config, "dtype", None))
    kept = {n: state[n].detach().to(dtype).contiguous() for n, dtype in trainee.stored.items()}
    save_tensors(kept, folder / WEIGHTS)
    (folder / PROVENANCE_FILE).write_text(json.dumps(dict(provenance), indent=2) + "\n")


def declare(config: pathlib.Path, shapes: Mapping[str, tuple[int, ...]], dtype: str | None) -> None:
    """Put shapes of cameras and the precision of the weights, where a type has one, into a policy's
    configuration, which stays as it is if it has them."""
    content = json.loads(config.read_text())
    before = json.dumps(content)
    for name, shape in shapes.items():
        content["input_features"][name]["shape"] = list(shape)
    if dtype is not None:
        content["dtype"] = dtype
    if json.dumps(content) != before:
        config.write_text(json.dumps(content, indent=2) + "\n")


def check_readable(checkpoint: PolicyCheckpoint) -> None:
    """Refuse weights that were cut off; the headers of the files are read alone.

    Raises:
        ConfigError: naming the file.
    """
    for file in checkpoint.weights:
        try:
            with safe_open(file, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): copy it again") from error


def check_frozen(checkpoint: PolicyCheckpoint, prefixes: Sequence[str]) -> None:
    """Refuse a prefix of `algorithm.freeze` that names nothing, as far as the files tell: of other
    types than these a file may have other names than the network, which `freeze` knows.

    Raises:
        ConfigError: naming it.
    """
    if checkpoint.policy_type in NAMED_ALIKE:
        names = [name for file in checkpoint.weights for name in shapes_of(file)]
        check_prefixes([name.replace("_orig_mod.", "") for name in names], prefixes)


def check_same_architecture(checkpoint: PolicyCheckpoint, trained: pathlib.Path) -> None:
    """Refuse to go on with weights of another policy; the headers of the files are read alone.

    Args:
        checkpoint: the policy that a run names.
        trained: weights of a checkpoint of the run; a damaged file is found when it is read.

    Raises:
        ConfigError: a tensor has another shape.
    """
    ours = shapes_of(trained)
    for file in checkpoint.weights:
        for name, shape in shapes_of(file).items():
            if ours.get(name, shape) != shape:
                raise ConfigError(
                    f"{trained} is of another architecture than {file}: {name} has shape "
                    f"{ours[name]} there and {shape} here; put the policy back that the run was "
                    "started from"
                )


def shapes_of(file: pathlib.Path) -> dict[str, list[int]]:
    """Shape of each tensor; none for a file that cannot be read."""
    try:
        with safe_open(file, "pt") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}
