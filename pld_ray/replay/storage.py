"""The files of a saved ring: atomic to write, shared between saves, checked when read."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pld_ray.errors import UserError
from pld_ray.files.manifest import checksum, sha256
from pld_ray.files.tensors import save_tensors

FORMAT = "pld-ray frame ring"
FORMAT_VERSION = 2
META_FILE = "ring.json"
PARTIAL = ".partial-"  # prefix of what is being written
OWN_FILES = (f"{PARTIAL}*", "segment-*.safetensors")


class ReplayFileError(UserError, ValueError):
    """A saved ring is damaged or belongs to something else; the message says which and why."""


class ReplayMissingError(ReplayFileError, FileNotFoundError):
    """A file of a saved ring is not there; the message names it."""


class OpenFolder:
    """A folder held by its descriptor: a finished checkpoint that is renamed is still found."""

    def __init__(self, path: pathlib.Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self.descriptor)

    def give(self, name: str, num_bytes: int, folder: pathlib.Path) -> bool:
        """Put a file of this folder into another one too; False if it is gone or of another size.

        The file is shared (a hard link) where the file system allows it, otherwise copied.
        """
        try:
            source = os.stat(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        if source.st_size != num_bytes:
            return False
        target, partial = folder / name, folder / f"{PARTIAL}{name}"
        if target.exists() and os.path.samestat(source, target.stat()):
            return True
        partial.unlink(missing_ok=True)
        try:
            os.link(name, partial, src_dir_fd=self.descriptor)
        except OSError:
            with self.open(name) as original, partial.open("wb") as copy:
                shutil.copyfileobj(original, copy, 1 << 20)
        os.replace(partial, target)
        return True

    def open(self, name: str) -> Any:
        """A file of this folder, opened to read bytes."""
        return os.fdopen(os.open(name, os.O_RDONLY, dir_fd=self.descriptor), "rb")


def write_tensors(folder: pathlib.Path, tensors: Mapping[str, Tensor]) -> tuple[str, str, int]:
    """Write `segment-<digest>.safetensors`; its name, SHA-256 and size in bytes."""
    partial = folder / f"{PARTIAL}segment.safetensors"
    try:
        save_tensors({name: tensor.cpu() for name, tensor in tensors.items()}, partial)
        digest, num_bytes = sha256(partial), partial.stat().st_size
        name = f"segment-{digest[:16]}.safetensors"
        os.replace(partial, folder / name)
    finally:
        partial.unlink(missing_ok=True)
    return name, digest, num_bytes


def check_file(path: pathlib.Path, digest: str, num_bytes: int) -> None:
    """Raise ReplayMissingError or ReplayFileError unless the file is the one that was written."""
    if not path.is_file():
        raise ReplayMissingError(
            f"replay {path}: no such file, though {META_FILE} names it; take another checkpoint"
        )
    found = path.stat().st_size
    if found != num_bytes:
        raise ReplayFileError(
            f"replay {path}: it has {found} bytes, {META_FILE} says {num_bytes}; the file is cut "
            "off or foreign, take another checkpoint"
        )
    if sha256(path) != digest:
        raise ReplayFileError(
            f"replay {path}: the checksum differs from the one in {META_FILE}; the file is "
            "damaged or foreign, take another checkpoint"
        )


def write_meta(folder: pathlib.Path, meta: Mapping[str, Any], files: set[str]) -> None:
    """Replace `ring.json` in one step, then remove files of former saves.

    A reader finds the former ring or this one, never a part of either.
    """
    body = {"format": FORMAT, "version": FORMAT_VERSION, **meta}
    partial = folder / f"{PARTIAL}{META_FILE}"
    partial.write_text(json.dumps({**body, "checksum": checksum(body)}))
    os.replace(partial, folder / META_FILE)
    for pattern in OWN_FILES:
        for stale in folder.glob(pattern):
            if stale.name not in files:
                stale.unlink()


def read_meta(folder: pathlib.Path, schema: Mapping[str, Any]) -> dict[str, Any]:
    """`ring.json`, after checking that it is whole and has this schema.

    Raises:
        ReplayMissingError: it does not exist.
        ReplayFileError: otherwise.
    """
    path = folder / META_FILE
    if not path.is_file():
        raise ReplayMissingError(
            f"replay {path}: no such file; give a folder that a ring was saved to"
        )
    try:
        meta = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ReplayFileError(f"replay {path}: not readable as JSON ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ReplayFileError(f"replay {path}: this is not a saved ring of pld-ray")
    if meta.get("version") != FORMAT_VERSION:
        raise ReplayFileError(
            f"replay {path}: format version {meta.get('version')}, need {FORMAT_VERSION}; continue "
            "with the release that wrote it or collect the replay anew"
        )
    if meta.pop("checksum", None) != checksum(meta):
        raise ReplayFileError(
            f"replay {path}: the checksum differs from its contents; the file is damaged or was "
            "edited, take another checkpoint"
        )
    check_schema(path, meta["schema"], schema)
    return meta


def check_schema(path: pathlib.Path, found: Any, wanted: Mapping[str, Any]) -> None:
    """Raise ReplayFileError naming the encoder or the first column in which two schemas differ."""
    wanted = json.loads(json.dumps(wanted))
    encoder, own = found["features_fingerprint"], wanted["features_fingerprint"]
    if encoder and own and encoder != own:
        raise ReplayFileError(
            f"replay {path}: the features in it were computed by encoder {encoder} but this run "
            f"has encoder {own}; use the same vision_encoder_name, vision_encoder_weights and "
            "seed, or collect the replay anew"
        )
    columns = found["columns"]
    for name in sorted(columns.keys() | wanted["columns"].keys()):
        if columns.get(name) != wanted["columns"].get(name):
            raise ReplayFileError(
                f"replay {path}: column {name!r} is {columns.get(name)} in the file but "
                f"{wanted['columns'].get(name)} in this run"
            )
    for entry in ("observation_keys", "row"):
        if found[entry] != wanted[entry]:
            raise ReplayFileError(
                f"replay {path}: {entry}, which columns lie in which order, is {found[entry]} in "
                f"the file but {wanted[entry]} in this run"
            )
