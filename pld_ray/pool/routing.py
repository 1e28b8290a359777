"""Whom a client asks: the less loaded of two replicas, without asking for their loads first."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Collection

import numpy as np

from pld_ray.pool.messages import ReplicaTable

SUSPECT_S = 10.0


class Router:
    """Chooses a replica for each request of one client.

    Tables come with answers, a few times a second, so loads are old when they are read; if every
    caller moved to whoever looked idle, all of them would move together and back again. So a
    client stays with its replica, compares it once per table with one other drawn at random, and
    moves with the probability that makes the two even if all their callers do alike. Its own
    requests in flight it knows exactly: they are compared on every request.

    Args:
        table: the replicas to start with.
        rng: draws whom to compare and whether to move.
        clock: seconds.

    Attributes:
        in_flight: rows of this client's own requests, by replica.
        home: the replica that it stays with for now.
    """

    def __init__(
        self,
        table: ReplicaTable,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self._rng = rng
        self._clock = clock
        self.home: str | None = None
        self._compared: tuple[int, int] | None = None
        self._seen: dict[str, float] = {}  # depths told by answers, newer than the table's
        self.in_flight: collections.Counter[str] = collections.Counter()
        self._suspected: dict[str, float] = {}

    def update(self, table: ReplicaTable | None) -> None:
        """Take a table that is newer than the one known."""
        if table is not None and table.version > self.table.version:
            self.table = table
            self._seen.clear()
            self._suspected = {n: t for n, t in self._suspected.items() if n in table.depths}
            if self.home not in table.depths:
                self.home = None

    def sent(self, name: str, rows: int) -> None:
        """A request was sent to `name`."""
        self.in_flight[name] += rows

    def released(self, name: str, rows: int) -> None:
        """A request sent to `name` is over, or not waited for any more."""
        self.in_flight[name] -= rows
        if self.in_flight[name] <= 0:
            del self.in_flight[name]

    def answered(self, name: str, other_rows: float | None) -> None:
        """`name` answered, with so many rows of others there, if it tells."""
        self._suspected.pop(name, None)
        if other_rows is not None:
            self._seen[name] = other_rows

    def suspect(self, name: str) -> None:
        """`name` was lost or late: for a while it is asked only if there is no other."""
        self._suspected[name] = self._clock() + SUSPECT_S

    def choose(self, avoid: Collection[str] = ()) -> str | None:
        """The replica to ask, none of `avoid`; None if there is no other."""
        names = [name for name in self.table.depths if name not in avoid]
        if not names:
            return None
        if self._suspected:
            now = self._clock()
            names = [n for n in names if self._suspected.get(n, now) <= now] or names
        if self.home not in names:
            self.home = None
        if len(names) == 1:
            chosen = names[0]
        elif self.home is None:
            first, second = (names[i] for i in self._rng.choice(len(names), 2, replace=False))
            chosen = second if self._rng.random() < self._move(first, second) else first
        else:
            chosen = self._compare(self.home, names)
        if not avoid:
            self.home, self._compared = chosen, self.table.version
        return chosen

    def _compare(self, current: str, names: list[str]) -> str:
        if self._compared == self.table.version and not self.in_flight[current]:
            return current
        others = [name for name in names if name != current]
        other = others[self._rng.integers(len(others))]
        return other if self._rng.random() < self._move(current, other) else current

    def _move(self, current: str, other: str) -> float:
        """The probability of leaving `current` for `other`."""
        here, there = self._depth(current), self._depth(other)
        own = self.in_flight[current] - self.in_flight[other]
        return own + (here - there) / (2.0 * max(here, there, 1.0))

    def _depth(self, name: str) -> float:
        return self._seen.get(name, self.table.depths.get(name, 0.0))
