"""What a replica counts, how the pool adds it up, and its export through `ray.util.metrics`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ray.util.metrics import Counter, Gauge, Histogram

PREFIX = "pld_ray_base_policy_"
PERCENTILES = (50, 95, 99)
WINDOW_S = 60.0  # of the busy share
NUM_LATENCIES = 1000  # the latest, of which percentiles are taken

COUNTERS = ("requests", "batches", "rows", "retries", "deadline_misses", "refused")
"""Counts of a replica that the pool sums, replaced replicas included."""


class ReplicaStatistics:
    """Counts of one replica. Times are seconds of one monotonic clock, given by the caller.

    Args:
        now: when the replica became ready.
        export: gets every batch and answer too, see `RayMetrics`.
    """

    def __init__(self, now: float, export: RayMetrics | None = None) -> None:
        self._export = export
        self._ready = now
        self._depth, self._depth_since, self._depth_seconds, self._polled = 0, now, 0.0, now
        self._busy_since: float | None = None
        self._work: collections.deque[tuple[float, float]] = collections.deque()
        self._worked = 0.0  # seconds of all in it
        self.batch_sizes: collections.Counter[int] = collections.Counter()
        self.latencies: collections.deque[float] = collections.deque(maxlen=NUM_LATENCIES)
        self.num_requests = 0
        self.retries = 0
        self.missed = 0  # deadlines that callers report
        self.refused = 0
        self.consecutive_failures = 0

    def depth(self, rows: int, now: float) -> None:
        """From now on `rows` rows wait or are being inferred."""
        self._depth_seconds += self._depth * (now - self._depth_since)
        self._depth, self._depth_since = rows, now
        if self._export:
            self._export.queue_depth.set(rows)

    def started(self, depth: int, now: float) -> None:
        """A batch starts."""
        self._busy_since = now
        self.depth(depth, now)

    def finished(self, rows: int, depth: int, now: float) -> None:
        """The batch that was started last, of `rows` rows, is over."""
        assert self._busy_since is not None
        self._work.append((self._busy_since, now))
        self._worked += now - self._busy_since
        self._busy_since = None
        self.batch_sizes[rows] += 1
        self.depth(depth, now)
        if self._export:
            self._export.batch_size.observe(rows)
            self._export.busy_share.set(self.busy_share(now))

    def answered(self, latency: float) -> None:
        """A request was answered `latency` seconds after it came in."""
        self.num_requests += 1
        self.latencies.append(latency)
        if self._export:
            self._export.latency.observe(1000.0 * latency)

    def called(self, attempt: int, missed: int) -> None:
        """A request came in that is its caller's `attempt`-th repetition of it (0 is the first).

        Args:
            missed: deadlines that the caller missed since it last said so.
        """
        self.retries += attempt > 0
        self.missed += missed
        if self._export:
            if attempt:
                self._export.retries.inc(1)
            if missed:
                self._export.deadline_misses.inc(missed)

    def busy_for(self, now: float) -> float:
        """Seconds since the batch in work was started, 0 if there is none."""
        return 0.0 if self._busy_since is None else now - self._busy_since

    def busy_share(self, now: float) -> float:
        """Share of the last `WINDOW_S` seconds (or since ready) spent inside the policy."""
        start = max(self._ready, now - WINDOW_S)
        while self._work and self._work[0][1] <= start:
            begin, end = self._work.popleft()
            self._worked = self._worked - (end - begin) if self._work else 0.0
        worked = self._worked
        if self._work:  # of the oldest, what lies in the window
            worked -= max(0.0, start - self._work[0][0])
        if self._busy_since is not None:
            worked += now - max(self._busy_since, start)
        return worked / max(now - start, 1e-9)

    def mean_depth(self, now: float) -> float:
        """Mean queue depth in rows since the last call of this."""
        self.depth(self._depth, now)
        mean = self._depth_seconds / max(now - self._polled, 1e-9)
        self._depth_seconds, self._polled = 0.0, now
        return mean

    def snapshot(self, now: float) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "queue_depth": self._depth,
            "busy_share": self.busy_share(now),
            "latency_ms": latency_ms(self.latencies),
            "latencies": list(self.latencies),
            **self.counts(),
        }

    def counts(self) -> dict[str, Any]:
        """`COUNTERS` and batch sizes."""
        return {
            "batch_sizes": dict(self.batch_sizes),
            "requests": self.num_requests,
            "batches": sum(self.batch_sizes.values()),
            "rows": sum(size * count for size, count in self.batch_sizes.items()),
            "retries": self.retries,
            "deadline_misses": self.missed,
            "refused": self.refused,
        }


def latency_ms(latencies: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds of latencies in seconds; nan if there are none."""
    milliseconds = 1000.0 * np.asarray(latencies if len(latencies) else [np.nan])
    return {f"p{q}": float(np.percentile(milliseconds, q)) for q in PERCENTILES}


def added_up(snapshots: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counters and batch sizes of several replicas, past ones included."""
    total: dict[str, Any] = {**dict.fromkeys(COUNTERS, 0), "batch_sizes": collections.Counter()}
    for snapshot in snapshots:
        total["batch_sizes"].update(snapshot["batch_sizes"])
        for name in COUNTERS:
            total[name] += snapshot[name]
    return {**total, "batch_sizes": dict(total["batch_sizes"])}


class RayMetrics:
    """The same for Ray's metrics endpoint, tagged with pool and replica."""

    def __init__(self, pool: str, replica: str) -> None:
        tags = {"pool": pool, "replica": replica}
        keys = tuple(tags)

        def gauge(name: str, description: str) -> Any:
            return Gauge(PREFIX + name, description, keys).set_default_tags(tags)

        def histogram(name: str, description: str, boundaries: list[float]) -> Any:
            metric = Histogram(PREFIX + name, description, boundaries, keys)
            return metric.set_default_tags(tags)

        self.queue_depth = gauge("queue_depth", "Rows that wait or are being inferred")
        self.busy_share = gauge("busy_share", "Share of the last minute spent in inference")
        self.batch_size = histogram(
            "batch_size", "Rows of a batch", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        )
        self.latency = histogram(
            "latency_ms",
            "Milliseconds from a request's arrival to its answer",
            [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000],
        )
        self.retries = counter("retries", "Requests asked again of another replica", tags)
        self.deadline_misses = counter("deadline_misses", "Requests without an answer", tags)


def counter(name: str, description: str, tags: dict[str, str]) -> Any:
    """One of Ray's counters; it takes no zero."""
    return Counter(PREFIX + name, description, tuple(tags)).set_default_tags(tags)
