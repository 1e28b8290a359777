"""What waits to be sent while a tracking server is away, bounded in memory and in time."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("pld_ray.tracking")


class Refused(Exception):
    """The server answered and does not want these items; sending them again cannot help."""


class Outbox:
    """Sends items in order, keeps them during an outage and tries again later.

    An outage is any error of `send` but `Refused`. It is reported once when it begins and once
    when it ends, and the caller never sees it: training goes on.

    Args:
        send: sends a batch of items of one type, or raises.
        name: what the items are sent to, for the log.
        limits: greatest batch of each item type; 1 for a type not listed.
        capacity: items kept during an outage; beyond it the oldest are dropped and counted.
        retry_s: seconds before the first new attempt; doubled at each failure, at most 300.
        budget_s: seconds after which `flush` leaves the rest of a backlog to the next call.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Any]], None],
        name: str,
        limits: dict[type, int],
        capacity: int = 50_000,
        retry_s: float = 15.0,
        budget_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._name, self._limits = send, name, limits
        self._capacity, self._retry_s, self._budget_s = capacity, retry_s, budget_s
        self._clock = clock
        self._items: deque[Any] = deque()
        self._lost: Counter[str] = Counter()
        self._failures = 0
        self._retry_at = 0.0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def lost(self) -> dict[str, int]:
        """Items dropped since the outage began, by type."""
        return dict(self._lost)

    def put(self, items: Sequence[Any]) -> None:
        """Queue items, then send what can be sent now."""
        self._items.extend(items)
        while len(self._items) > self._capacity:
            self._lost[type(self._items.popleft()).__name__] += 1
        self.flush()

    def flush(self, force: bool = False, budget_s: float | None = None) -> bool:
        """Send the queue, unless an outage began too recently and `force` is not set.

        Returns:
            Whether nothing is left.
        """
        start = self._clock()
        if start < self._retry_at and not force:
            return False
        while self._items and self._clock() - start <= (budget_s or self._budget_s):
            batch = self._next_batch()
            try:
                self._send(batch)
            except Refused as error:
                log.warning("%s refused %s: %s", self._name, _count(batch), error)
            except Exception as error:  # whatever a store or an artifact back end raises
                self._begin_or_prolong_outage(error)
                return False
            self._end_outage()
            for _ in batch:
                self._items.popleft()
        return not self._items

    def _next_batch(self) -> list[Any]:
        """The longest run of one type at the front of the queue."""
        kind = type(self._items[0])
        batch: list[Any] = []
        for item in self._items:
            if type(item) is not kind or len(batch) == self._limits.get(kind, 1):
                break
            batch.append(item)
        return batch

    def _begin_or_prolong_outage(self, error: Exception) -> None:
        if not self._failures:
            log.warning(
                "%s cannot be reached (%s); training goes on, up to %d values are queued and sent "
                "when it is back",
                self._name,
                shorten(error),
                self._capacity,
            )
        self._retry_at = self._clock() + min(300.0, self._retry_s * 2**self._failures)
        self._failures = min(self._failures + 1, 10)

    def _end_outage(self) -> None:
        if self._failures:
            dropped = f"; dropped for want of room: {_listed(self._lost)}" if self._lost else ""
            log.warning("%s answers again%s", self._name, dropped)
            self._lost.clear()
        self._failures, self._retry_at = 0, 0.0

    def contents(self) -> str:
        """What is queued and what was dropped, in words; empty when there is neither."""
        parts = [f"not sent: {_count(self._items)}"] if self._items else []
        parts += [f"dropped: {_listed(self._lost)}"] if self._lost else []
        return ", ".join(parts)


def shorten(error: BaseException, length: int = 300) -> str:
    """An error as one line; the innermost reason where a request library nests several."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.rpartition("(Caused by ")
    return reason.removesuffix(")")[:length] if reason != text else text[:length]


def _count(items: Sequence[Any] | deque[Any]) -> str:
    return _listed(Counter(type(item).__name__ for item in items))


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} x {kind}" for kind, n in counts.items())
