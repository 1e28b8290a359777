"""One process at a time works in a folder, of this host or of one that shares the folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pld_ray.files.atomic import write_atomically

LOCK_FILE = "run.lock"
BEAT_S = 10.0
"""The owner touches its lock so often."""
STALE_S = 60.0
"""A lock of another host that was not touched for so long was left behind: a host cannot ask after
another one's processes."""


@dataclass(frozen=True)
class Owner:
    """A process that holds a lock."""

    pid: int
    host: str

    def __str__(self) -> str:
        if self == this_process():
            return "this process"
        return f"process {self.pid}" + (
            "" if self.host == socket.gethostname() else f" of {self.host}"
        )


class FolderLock:
    """`run.lock` in a folder: held from `claim` to `release`, or to the end of the process.

    Args:
        folder: made by `claim` if it is not there.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.path = folder / LOCK_FILE
        self._released: threading.Event | None = None
        self._written = ""

    def claim(
        self, wait_s: float = 0.0, alone: bool = False, driver: Owner | None = None
    ) -> Owner | None:
        """Take the lock; who has it, if that is another process still after `wait_s` seconds.

        Where another object of this process holds it, it goes on holding it, and its `release`
        frees the folder.

        Args:
            wait_s: seconds to wait for an owner that may be about to end.
            alone: this process's other objects count as owners too.
            driver: who started this process to work here; where it holds the lock, it goes on
                holding it.
        """
        deadline = time.monotonic() + wait_s
        ours = {driver} if alone else {driver, this_process()}
        while (owner := self._try()) is not None and owner not in ours:
            if time.monotonic() >= deadline:
                return owner
            time.sleep(0.1)
        return None

    def _try(self) -> Owner | None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(self.path.parent):
            owner = lock_owner(self.path)
            if owner is not None:
                return None if self._released is not None and owner == this_process() else owner
            self._written = my_lock()
            write_atomically(self.path, self._written)
        self._released = threading.Event()
        beats = threading.Thread(
            target=self._beat, args=[self._released], name=f"beats of {self.path}", daemon=True
        )
        beats.start()
        return None

    def release(self) -> None:
        """The folder is free for another process, if this object took it; else nothing happens.

        Nor does where another host has taken it since, which this one could not tell that it lives.
        """
        if self._released is not None:
            self._released.set()
            self._released = None
            if self._is_mine():
                self.path.unlink(missing_ok=True)

    def _beat(self, released: threading.Event) -> None:
        while not released.wait(BEAT_S):
            try:
                if not self._is_mine():
                    return
                os.utime(self.path)
            except FileNotFoundError:
                return  # the folder is gone, and nobody can claim it
            except OSError:  # of a network's file system: the next beat may be heard
                continue

    def _is_mine(self) -> bool:
        """Whether the lock is as this process wrote it.

        Raises:
            OSError: of a network's file system.
        """
        try:
            return self.path.read_text() == self._written
        except (FileNotFoundError, ValueError):
            return False


@contextlib.contextmanager
def _one_at_a_time(folder: pathlib.Path) -> Iterator[None]:
    """Looking and writing are one step, where the file system has locks of its own."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_owner(path: pathlib.Path) -> Owner | None:
    """The process that holds a lock; None where nobody does."""
    try:
        content = json.loads(path.read_text())
        owner = Owner(int(content["pid"]), str(content["host"]))
        started = content.get("started")
        if owner.host != socket.gethostname():
            return owner if age_s(path) < STALE_S else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return owner if is_alive(owner.pid, started) else None


def this_process() -> Owner:
    """This process as the owner of a lock."""
    return Owner(os.getpid(), socket.gethostname())


def my_lock() -> str:
    """What this process writes into a lock."""
    me = this_process()
    content = {"pid": me.pid, "host": me.host, "started": process_start(me.pid)}
    return json.dumps(content) + "\n"


def is_alive(pid: int, started: str | None = None) -> bool:
    """Whether a process of this host exists, and is the one that began at `started`."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    return started is None or process_start(pid) in (None, started)


def process_start(pid: int) -> str | None:
    """When a process began, so that a number given out again is told apart; None if unknown."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return f"{boot} {fields[19]}"  # the 22nd of proc(5), in clock ticks since the boot


def age_s(path: pathlib.Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-") as now:
            return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
    except OSError:
        return time.time() - path.stat().st_mtime
