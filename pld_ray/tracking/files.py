"""Files that are whole or absent."""

from __future__ import annotations

import os
import pathlib
import tempfile


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
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)  # mkstemp's 0600 would hide results from a shared folder's readers
        os.replace(partial, path)
    except BaseException:
        pathlib.Path(partial).unlink(missing_ok=True)
        raise
    return path
