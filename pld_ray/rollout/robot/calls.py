"""A driver's calls, on one thread of their own and for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class NoAnswerError(TimeoutError):
    """The driver has not come back in time; the message says so of the robot."""


class Calls:
    """Calls one after the other, all on the same thread; it keeps no process from ending.

    A driver that does not come back leaves nobody waiting: whoever calls it goes on after the
    limit, and all further calls fail at once until it has come back.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._hanging: Future[Any] | None = None
        self._why = ""

    def call(self, function: Callable[[], Any], limit_s: float) -> Any:
        """What the function returns, or raises.

        Raises:
            NoAnswerError: it takes longer than `limit_s`, or an earlier one still does.
        """
        if self.hangs:
            raise NoAnswerError(self._why)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="robot", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._asked.put((future, function))
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():  # the driver's own
                raise
        self._hanging, self._why = future, f"the robot has not answered for {limit_s:g} s"
        raise NoAnswerError(self._why)

    @property
    def hangs(self) -> bool:
        """Whether a call that took too long has not come back yet."""
        return self._hanging is not None and not self._hanging.done()

    def wait(self, timeout_s: float) -> None:
        """Return when none hangs any more, or after this time."""
        if self._hanging is not None:
            futures.wait([self._hanging], timeout_s)

    def close(self) -> None:
        """The thread ends when the driver has come back; safe to call again."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread = None

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, function = asked
            try:
                future.set_result(function())
            except BaseException as error:  # of the driver; it is raised where it was called
                future.set_exception(error)
