"""Stopping a sweep from outside."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, as `ray job stop` sends it, ends what is inside like Ctrl-C.

    Tune ends its trials in order on SIGINT; on SIGTERM Ray prints a native stack trace and aborts.
    To be entered when Ray runs, which sets a handler of its own; Tune leaves one behind for SIGINT.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
