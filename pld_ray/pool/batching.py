"""Gathers concurrent requests into batches (asyncio, one consumer)."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pld_ray.policies.leftovers import Leftovers
from pld_ray.policies.protocol import Prediction
from pld_ray.pool.adaptive_wait import AdaptiveWait
from pld_ray.pool.metrics import ReplicaStatistics


class Reply(NamedTuple):
    """One request's rows of its batch's output, and the load that it met."""

    prediction: Prediction
    other_rows: int
    """Rows of others that waited or were inferred when this request's batch started."""


class Expired(Exception):
    """A request's time was over before its batch started; it was not inferred."""


class Closed(Exception):
    """The batcher drains: it takes no more requests."""


@dataclasses.dataclass
class Request:
    """Rows of one caller, and where its answer goes. Times are of the monotonic clock."""

    observations: Mapping[str, np.ndarray]
    tasks: list[str]
    env_ids: list[int]
    seeds: list[int] | None
    caller: str
    arrived: float
    expires: float
    answer: asyncio.Future[Reply]
    leftovers: Leftovers | None = None

    @property
    def rows(self) -> int:
        return len(self.tasks)


class Batcher:
    """Collects requests until `max_batch_size` rows wait, or waiting for more does not pay.

    `infer` runs in a worker thread, one batch at a time, so requests keep arriving meanwhile: a
    busy replica forms full batches without waiting at all. A request is never split; one larger
    than `max_batch_size` is a batch of its own.

    Args:
        infer: takes the arguments of `BasePolicy.infer`, and `leftovers` if a request of the batch
            has some.
        max_batch_size: rows.
        max_wait_ms: milliseconds that a batch waits for company at most, while `infer` is idle.
        adaptive: wait only as long as it pays, see `AdaptiveWait`; else until the first request
            is `max_wait_ms` old.
        statistics: where batches and answers are counted.
    """

    def __init__(
        self,
        infer: Callable[..., Prediction],
        max_batch_size: int,
        max_wait_ms: float,
        adaptive: bool = True,
        statistics: ReplicaStatistics | None = None,
    ) -> None:
        self._infer = infer
        self._max_rows = max_batch_size
        self._max_wait = max_wait_ms / 1000.0
        self._adaptive = adaptive
        self._wait = AdaptiveWait(max_batch_size)
        self._waiting: collections.deque[Request] = collections.deque()
        self._rows_waiting = 0
        self._rows_in_work = 0
        self._closed = False
        self._arrival = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._consumer: asyncio.Task[None] | None = None
        self._worker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="infer")
        self.statistics = statistics or ReplicaStatistics(time.monotonic())

    @property
    def queue_depth(self) -> int:
        """Rows that wait or are being inferred."""
        return self._rows_waiting + self._rows_in_work

    async def submit(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: list[str],
        env_ids: list[int],
        seeds: list[int] | None,
        caller: str = "",
        expires_in_s: float = float("inf"),
        leftovers: Leftovers | None = None,
    ) -> Reply:
        """The caller's own rows.

        Args:
            caller: whose habits this request belongs to.
            expires_in_s: a batch that starts later leaves the request out.
            leftovers: one per row, see `BasePolicy`.

        Raises:
            Closed: the batcher drains.
            Expired: the time was over before the batch started.
            Exception: whatever `infer` raised for the batch.
        """
        if self._closed:
            raise Closed
        if self._consumer is None:
            self._consumer = asyncio.create_task(self._consume())
        now = time.monotonic()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = Request(
            observations, tasks, env_ids, seeds, caller, now, now + expires_in_s, future, leftovers
        )
        self._wait.asked(caller, request.rows, now)
        self._waiting.append(request)
        self._rows_waiting += request.rows
        self._empty.clear()
        self.statistics.depth(self.queue_depth, now)
        self._arrival.set()
        return await future

    async def drain(self) -> None:
        """Take no more requests and return when those that wait have been answered."""
        self.close()
        await self._empty.wait()

    def close(self) -> None:
        """Take no more requests."""
        self._closed = True
        self._arrival.set()

    async def _consume(self) -> None:
        while True:
            await self._gather()
            batch = self._take()
            if batch:
                await self._serve(batch)
            if not self._waiting:
                self._empty.set()

    async def _serve(self, batch: list[Request]) -> None:
        self._rows_in_work = sum(request.rows for request in batch)
        depth, started = self.queue_depth, time.monotonic()
        self.statistics.started(depth, started)
        try:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._worker, lambda: self._infer(**merged(batch)))
            self._deliver(batch, Prediction(*answer), depth)
        except Exception as error:  # goes to the callers, the next batch may well succeed
            self.statistics.consecutive_failures += 1
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
        else:
            self.statistics.consecutive_failures = 0
        now = time.monotonic()
        self._wait.service.learn(self._rows_in_work, now - started)
        self._wait.answered([request.caller for request in batch], now)
        rows, self._rows_in_work = self._rows_in_work, 0
        self.statistics.finished(rows, self.queue_depth, now)

    async def _gather(self) -> None:
        """Return when a batch is due."""
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        # time spent in the queue of a busy replica is not a wait for company
        limit = (time.monotonic() if self._adaptive else self._waiting[0].arrived) + self._max_wait
        while self._rows_waiting < self._max_rows and not self._closed:
            now, until = time.monotonic(), limit
            if self._adaptive:
                until = self._wait.wait_until(self._rows_waiting, now, limit)
            if until <= now:
                return
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), until - now)
            except TimeoutError:
                return

    def _take(self) -> list[Request]:
        """The next batch; requests whose callers have gone or whose time is over are left out."""
        batch: list[Request] = []
        rows, now = 0, time.monotonic()
        while self._waiting and (not batch or self._fits(batch[0], rows)):
            request = self._waiting.popleft()
            self._rows_waiting -= request.rows
            if request.answer.done() or request.expires < now:
                self._wait.answered([request.caller], now)
                if not request.answer.done():
                    self.statistics.expired += 1
                    request.answer.set_exception(Expired())
                continue
            batch.append(request)
            rows += request.rows
        return batch

    def _fits(self, first: Request, rows: int) -> bool:
        """The next request may join a batch of `rows` rows that begins with `first`."""
        request = self._waiting[0]
        return (
            rows + request.rows <= self._max_rows
            and (request.seeds is None) == (first.seeds is None)  # one without would spoil them all
        )

    def _deliver(self, batch: list[Request], answer: Prediction, depth: int) -> None:
        if len(answer.chunks) != self._rows_in_work:
            raise RuntimeError(
                f"the base policy answered {len(answer.chunks)} rows to a request of "
                f"{self._rows_in_work}"
            )
        start, now = 0, time.monotonic()
        for request in batch:
            rows = slice(start, start + request.rows)
            start = rows.stop
            if request.answer.done():  # the caller may have gone
                continue
            request.answer.set_result(Reply(answer.rows(rows), depth - request.rows))
            self.statistics.answered(now - request.arrived)


def merged(batch: list[Request]) -> dict[str, Any]:
    """The arguments of one `infer` call for all rows of `batch`, in order."""
    keys = batch[0].observations.keys()
    with_seeds = batch[0].seeds is not None
    request: dict[str, Any] = {
        "observations": {k: np.concatenate([r.observations[k] for r in batch]) for k in keys},
        "tasks": [task for r in batch for task in r.tasks],
        "env_ids": [env for r in batch for env in r.env_ids],
        "seeds": [seed for r in batch for seed in r.seeds or ()] if with_seeds else None,
    }
    if any(r.leftovers is not None for r in batch):
        request["leftovers"] = [
            one for r in batch for one in r.leftovers or itertools.repeat(None, r.rows)
        ]
    return request
