"""`manifest.json` of a checkpoint: size and SHA-256 of every file, written last, checked first."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Collection, Iterable
from typing import Any

from pld_ray.errors import UserError
from pld_ray.files.access import who_may_read
from pld_ray.files.atomic import flush, write_atomically

MANIFEST_FILE = "manifest.json"
MARK = "has_manifest"
"""In the progress file of a checkpoint that was written with a manifest."""
SEGMENTS = "segment-*.safetensors"
"""Of the replay: their checksums are in `ring.json`, and the ring checks them as it reads them."""


class CheckpointError(UserError, ValueError):
    """A checkpoint is damaged, or is none; the message names the file."""


def write_manifest(folder: pathlib.Path) -> None:
    """Describe every file below `folder` as it is now."""
    _write(folder, {name: describe(folder / name) for name in files_below(folder)})


def add_to_manifest(folder: pathlib.Path, *names: str) -> None:
    """Describe files that were written after the manifest."""
    files = json.loads((folder / MANIFEST_FILE).read_text())["files"]
    _write(folder, files | {name: describe(folder / name) for name in names})


def take_from_manifest(folder: pathlib.Path, name: str) -> None:
    """Let the manifest say nothing of a file that is to be written anew, `add_to_manifest` next."""
    files = json.loads((folder / MANIFEST_FILE).read_text())["files"]
    _write(folder, {other: written for other, written in files.items() if other != name})


def check_manifest(folder: pathlib.Path, only: Collection[str] | None = None) -> bool:
    """Whether `folder` has a manifest; with one, every file is what was written.

    Args:
        folder: of a checkpoint.
        only: names of the files that are to be read; None is all.

    Raises:
        CheckpointError: a file, or the manifest, is missing, of another size or of other contents,
            or may not be read.
    """
    path = folder / MANIFEST_FILE
    try:
        if not path.exists():
            return False
        content = json.loads(path.read_bytes())
        files: dict[str, dict[str, Any]] = content["files"]
        if content["checksum"] != checksum(files):
            raise ValueError("its checksum differs from its contents")
        for name, written in files.items():
            if only is None or name in only:
                check_file(folder, name, written)
    except CheckpointError:
        raise
    except PermissionError:
        raise kept_secret(path) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, f"it is not what was written ({error})") from None
    return True


def check_file(folder: pathlib.Path, name: str, written: dict[str, Any]) -> None:
    """Raise CheckpointError unless a file is what `describe` described."""
    path = folder / name
    try:
        found = path.stat().st_size
        if found != written["bytes"]:
            raise damaged(path, f"it has {found} bytes and was written with {written['bytes']}")
        if "sha256" in written and sha256(path) != written["sha256"]:
            raise damaged(path, f"its checksum differs from the one in {MANIFEST_FILE}")
    except PermissionError:
        raise kept_secret(path) from None
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


def damaged(path: pathlib.Path, why: str) -> CheckpointError:
    """The error of one file."""
    return CheckpointError(f"the checkpoint file {path} is damaged: {why}")


def kept_secret(path: pathlib.Path) -> CheckpointError:
    """The error of one that is whole for all this user knows."""
    return CheckpointError(f"the checkpoint file {path} may not be read: {who_may_read(path)}")


def describe(path: pathlib.Path) -> dict[str, Any]:
    """Size of a file that is on the disk now, and its SHA-256 unless something else keeps it."""
    flush(path)
    size = {"bytes": path.stat().st_size}
    return size if path.match(SEGMENTS) else {**size, "sha256": sha256(path)}


def files_below(folder: pathlib.Path) -> Iterable[str]:
    """Relative paths of all files, the manifest aside."""
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in found if name != MANIFEST_FILE)


def checksum(description: Any) -> str:
    """SHA-256 of plain data, whatever the order of its entries."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def sha256(path: pathlib.Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: pathlib.Path, files: dict[str, Any]) -> None:
    content = {"files": files, "checksum": checksum(files)}
    for name in {pathlib.PurePosixPath(name).parent for name in files}:
        flush(folder / name)
    write_atomically(folder / MANIFEST_FILE, json.dumps(content, indent=1) + "\n")
