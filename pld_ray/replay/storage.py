"""Tensors and a description of them on disk: atomic to write, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT = "pld-ray frame ring"
FORMAT_VERSION = 1
META_FILE = "ring.json"


class ReplayFileError(ValueError):
    """A saved ring is damaged or belongs to something else; the message says which and why."""


def save(
    folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write `rows-<digest>.safetensors`, then `ring.json` that names it.

    `ring.json` is replaced in one step and last: a reader finds the former ring or this one, never
    a part of either.
    """
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", suffix=".safetensors", dir=path)
    os.close(handle)
    partial = pathlib.Path(name)
    try:
        save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, str(partial))
        digest = sha256(partial)
        data_file = path / f"rows-{digest[:16]}.safetensors"
        os.replace(partial, data_file)
    finally:
        partial.unlink(missing_ok=True)
    description = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "file": data_file.name,
        "sha256": digest,
        **meta,
    }
    partial_meta = path / f".partial-{META_FILE}"
    partial_meta.write_text(json.dumps(description, indent=1))
    os.replace(partial_meta, path / META_FILE)
    for stale in path.glob("rows-*.safetensors"):
        if stale != data_file:
            stale.unlink()


def load(
    folder: str | os.PathLike[str], schema: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote, after checking that it is that, whole, and has this schema.

    Raises:
        FileNotFoundError: `ring.json` or the file that it names does not exist.
        ReplayFileError: otherwise.
    """
    meta_path = pathlib.Path(folder) / META_FILE
    if not meta_path.is_file():
        raise FileNotFoundError(
            f"replay {meta_path}: no such file; give a folder that a ring was saved to"
        )
    try:
        meta = json.loads(meta_path.read_text())
    except (ValueError, OSError) as error:
        raise ReplayFileError(f"replay {meta_path}: not readable as JSON ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ReplayFileError(f"replay {meta_path}: this is not a saved ring of pld-ray")
    if meta.get("version") != FORMAT_VERSION:
        raise ReplayFileError(
            f"replay {meta_path}: format version {meta.get('version')}, need {FORMAT_VERSION}"
        )
    missing = {"file", "sha256", "schema", "first_row", "episode_lengths"} - meta.keys()
    if missing:
        raise ReplayFileError(f"replay {meta_path}: entries are missing: {sorted(missing)}")
    check_schema(meta_path, meta["schema"], schema)
    data_path = meta_path.parent / str(meta["file"])
    if not data_path.is_file():
        raise FileNotFoundError(f"replay {data_path}: no such file, though {META_FILE} names it")
    if sha256(data_path) != meta["sha256"]:
        raise ReplayFileError(
            f"replay {data_path}: the checksum differs from the one in {META_FILE}; the file is "
            "damaged or foreign, restore it from another checkpoint"
        )
    try:
        return load_file(str(data_path)), meta
    except SafetensorError as error:
        raise ReplayFileError(f"replay {data_path}: not a safetensors file ({error})") from error


def check_schema(path: pathlib.Path, found: Any, wanted: Mapping[str, Any]) -> None:
    """Raise ReplayFileError naming the first column in which two schemas differ."""
    wanted = json.loads(json.dumps(wanted))
    if found == wanted:
        return
    columns = found.get("columns", {}) if isinstance(found, dict) else {}
    for name in sorted(columns.keys() | wanted["columns"].keys()):
        if columns.get(name) != wanted["columns"].get(name):
            raise ReplayFileError(
                f"replay {path}: column {name!r} is {columns.get(name)} in the file but "
                f"{wanted['columns'].get(name)} in this run"
            )
    raise ReplayFileError(f"replay {path}: the order of the observation columns differs")


def sha256(path: pathlib.Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
