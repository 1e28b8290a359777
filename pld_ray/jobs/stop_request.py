"""Ctrl-C and SIGTERM as a request."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from pld_ray.tracking.progress import TrainProgress


class Stopped(BaseException):
    """A stop was requested while there was nothing to do but wait; no failure of what waits."""


class StopRequest:
    """Turns the first SIGINT / SIGTERM into a flag, so that a run stops between two iterations."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
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
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after this iteration and saving; once more to abort", flush=True)
