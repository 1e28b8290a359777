"""Ctrl-C, SIGTERM and a terminal that is gone as a request."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

from pld_ray.tracking.terminal import leave_dead_terminal

if TYPE_CHECKING:
    from pld_ray.tracking.progress import TrainProgress


def stop_signals() -> list[int]:
    """What asks a run to end; SIGHUP, of a terminal that is gone, unless `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def hung_up(number: int) -> None:
    """Hear of a lost terminal once: the shell tells of it, and the kernel of the shell's end."""
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        leave_dead_terminal()


class Stopped(BaseException):
    """A stop was requested while there was nothing to do but wait; no failure of what waits."""


class StopRequest:
    """Turns the first of `stop_signals` into a flag, so that a run stops between two iterations."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in stop_signals():
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)

    def check(self, progress: TrainProgress) -> None:
        """Called while there is no env runner: shows that; raises Stopped if one was requested."""
        progress.update(phase="waiting for an env runner")
        self.raise_if_requested()

    def raise_if_requested(self) -> None:
        """Called where a run can end without losing anything; raises Stopped."""
        if self.requested:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        hung_up(number)
        if self.requested and number != signal.SIGHUP:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after this iteration and saving; once more to abort", flush=True)
