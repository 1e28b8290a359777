"""What a run or a sweep is doing, in its own words: `status.json`."""

from __future__ import annotations

import pathlib
import time
from dataclasses import asdict, dataclass

from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.lock import LOCK_FILE, lock_owner, this_process
from pld_ray.runs.layout import STATUS_FILE, read_json

RUNNING, FINISHED, STOPPED = "running", "finished", "stopped early"
INTERRUPTED, FAILED = "interrupted", "failed"
STATES = (RUNNING, FINISHED, STOPPED, INTERRUPTED, FAILED)


@dataclass(frozen=True)
class Status:
    """The state that a run's process has written."""

    state: str
    """One of `STATES`."""
    reason: str = ""
    """Why it failed, was stopped early, or waits, in one line."""
    since_s: float = 0.0
    """Unix time of the change to this state."""
    pid: int = 0
    host: str = ""


def write_status(folder: pathlib.Path, state: str, reason: str = "") -> None:
    """Write what this process's run is doing from now on."""
    me = this_process()
    status = Status(state, one_line(reason), round(time.time(), 3), me.pid, me.host)
    write_json_atomically(folder / STATUS_FILE, asdict(status))


def read_status(folder: pathlib.Path) -> Status | None:
    """The state of a folder; None where none was written, or the file is damaged.

    A run that was killed says that it is running, and nobody holds its lock: it is interrupted.
    """
    content = read_json(folder / STATUS_FILE)
    held = is_held(folder)
    if content.get("state") not in STATES:
        return None
    reason, since_s = content.get("reason"), content.get("since_s")
    status = Status(
        content["state"],
        reason if isinstance(reason, str) else "",
        since_s if isinstance(since_s, int | float) else 0.0,
        content.get("pid", 0),
        content.get("host", ""),
    )
    if held and status.state != RUNNING:
        return Status(RUNNING)  # the next life has begun, and has not said so yet
    if status.state == RUNNING and not held:
        return Status(INTERRUPTED, since_s=status.since_s)
    return status


def is_held(folder: pathlib.Path) -> bool:
    """Whether a process works in a folder."""
    return lock_owner(folder / LOCK_FILE) is not None


def failure_reason(error: BaseException) -> str:
    """`ValueError: what it says`, in one line."""
    return one_line(f"{type(error).__name__}: {error}")


def one_line(text: str) -> str:
    """The first line, of at most 500 characters."""
    return next(iter(text.strip().splitlines()), "")[:500]
