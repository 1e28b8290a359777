"""One process at a time writes a folder."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pathlib
import time

log = logging.getLogger("pld_ray.tracking")

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held: set[pathlib.Path] = set()


class FolderLock:
    """Held from its making until `release`, or until the process ends, however it ends.

    A record lock of the system: children of the process do not inherit it.

    Args:
        folder: made if it is not there; the lock is its file `lock`.
        wait_s: seconds to wait for another process, which may be about to end.

    Raises:
        BlockingIOError: another process, or this one already, holds it.
    """

    def __init__(self, folder: pathlib.Path, wait_s: float = 10.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = (folder / "lock").resolve()
        deadline = time.monotonic() + wait_s
        while self.path in _held:  # a second lock of one process would succeed
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"{folder} is in use by this process already")
            time.sleep(0.05)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while not self._try():
            if time.monotonic() >= deadline:
                owner = os.read(self._file, 100).decode(errors="replace").strip()
                os.close(self._file)
                raise BlockingIOError(f"{folder} is in use by another process ({owner})")
            time.sleep(0.05)
        os.ftruncate(self._file, 0)
        os.write(self._file, f"pid {os.getpid()} on {os.uname().nodename}\n".encode())
        _held.add(self.path)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                log.warning("%s cannot be locked (%s): going on without", self.path, error)
                return True
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def release(self) -> None:
        """Let the next one in; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _held.discard(self.path)
