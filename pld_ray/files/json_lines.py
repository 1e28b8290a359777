"""An append-only file of JSON objects, one a line, each whole or absent after a crash."""

from __future__ import annotations

import errno
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from pld_ray.files.atomic import write_atomically


def append_line(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Append one object; see `append_lines`."""
    append_lines(path, [record])


def append_lines(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append objects, by one write; they are on the disk when this returns.

    Raises:
        OSError: they cannot be written; nothing of them stays.
        ValueError: one holds what JSON cannot, such as NaN.
    """
    lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        data = lines.encode()
        try:
            written = file.write(data)
            if written != len(data):  # the disk is full
                only = f"only {written} of {len(data)} bytes were written"
                raise OSError(errno.ENOSPC, only, str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def write_lines(path: pathlib.Path, records: list[dict[str, Any]]) -> None:
    """Put a file of these objects in the place of the old one, at once."""
    write_atomically(path, "".join(json.dumps(r, allow_nan=False) + "\n" for r in records))


def read_lines(path: pathlib.Path, what: str = "record") -> list[dict[str, Any]]:
    """The objects of a file, oldest first; a torn last line is left out; empty without a file.

    Args:
        path: the file.
        what: what a line is, for the error.

    Raises:
        ValueError: another line is no object, naming file and line.
    """
    if not path.is_file():
        return []
    lines = path.read_text(errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise TypeError(f"a {type(record).__name__}")
            records.append(record)
        except (ValueError, TypeError) as error:
            torn = number == len(lines)  # a whole line ends in a newline: nothing follows it
            if not torn and line.strip():
                raise ValueError(
                    f"{path}, line {number} is no {what} ({error!r}): mend or delete that line"
                ) from error
    return records


def mend_lines(path: pathlib.Path, what: str = "record") -> list[dict[str, Any]]:
    """`read_lines`, and remove what a crash left torn, so that lines can be appended."""
    records = read_lines(path, what)
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                write_lines(path, records)
    return records
