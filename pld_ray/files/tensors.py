"""Writing safetensors that others may read, and a full disk is the OSError that it is."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import safetensors.numpy
from safetensors import SafetensorError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def save_arrays(arrays: Mapping[str, np.ndarray], path: os.PathLike[str]) -> None:
    """Write numpy arrays.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    with os_errors(path):
        safetensors.numpy.save_file(dict(arrays), path)
    as_any_new_file(path)


def save_tensors(tensors: Mapping[str, Tensor], path: os.PathLike[str]) -> None:
    """Write contiguous tensors; raises as `save_arrays`."""
    import safetensors.torch

    with os_errors(path):
        safetensors.torch.save_file(dict(tensors), path)
    as_any_new_file(path)


def as_any_new_file(path: os.PathLike[str]) -> None:
    """Give a file the mode that a new one has here: safetensors leaves 0600, whatever the umask.

    The umask can be asked for only by changing it for all threads; a file that is made tells it.
    """
    path = pathlib.Path(path)
    new = path.with_name(f".mode-{uuid.uuid4().hex[:8]}")
    try:
        new.touch(exist_ok=False)
        path.chmod(new.stat().st_mode & 0o777)
    finally:
        new.unlink(missing_ok=True)


@contextlib.contextmanager
def os_errors(path: os.PathLike[str]) -> Iterator[None]:
    """Raise OSError for what safetensors calls an error of its own, with the system's number."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found.group(1)) if found else errno.EIO
        reason = os.strerror(number) if found else str(error)
        raise OSError(number, reason, os.fspath(path)) from error
