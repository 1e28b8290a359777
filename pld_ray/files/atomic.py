"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from typing import Any


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> pathlib.Path:
    """Write `content` beside `path`, flush it to the disk and move it into place.

    A reader, or a crash at any moment, sees the old file or the new one and never a part of it.
    Missing parent folders are made. Text is UTF-8.

    Returns:
        `path`.

    Raises:
        OSError: the folder cannot be written; the old file is untouched and nothing is left beside.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    # as the umask has it: tempfile's 0600 would hide results from a shared folder's readers
    partial = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path


def flush(path: pathlib.Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a power cut leaves them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems know no flush of a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def undone_unless(folder: pathlib.Path, begun: Callable[[], bool]) -> Iterator[None]:
    """Take back what a start has put into `folder` if it fails before `begun()` is true.

    What was there before stays; a folder that was made for the start goes.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    before = set() if made else {path.name for path in folder.iterdir()}
    try:
        yield
    except BaseException:
        if not begun():
            for path in [] if not folder.is_dir() else list(folder.iterdir()):
                if path.name in before:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            for path in made:
                with contextlib.suppress(OSError):  # something else has been put there
                    path.rmdir()
        raise


def write_json_atomically(path: str | os.PathLike[str], data: Any) -> pathlib.Path:
    """`write_atomically` of what JSON can hold."""
    return write_atomically(path, json.dumps(data, indent=1))
