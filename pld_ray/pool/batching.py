"""Gathers concurrent requests into batches (asyncio, one consumer)."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pld_ray.policies import Prediction
from pld_ray.pool.messages import Answer, Request
from pld_ray.pool.metrics import ReplicaStatistics

WAIT_SHARE = 0.1  # of the time that a batch took: so soon do callers in lock step return


@dataclasses.dataclass
class Waiting:
    """A request and where its answer goes; times are of the monotonic clock."""

    request: Request
    arrived: float
    answer: asyncio.Future[Answer]


class Batcher:
    """Collects requests until `max_batch_size` rows wait, or the wait for more is over.

    `infer` runs in a worker thread, one batch at a time, so requests keep arriving meanwhile: a
    busy replica forms full batches of what has come in. Callers in lock step ask again as soon as
    they were answered. They share their batches because after a batch as many rows as it answered
    are waited for, a tenth of its time at most, if half of those that the batch before answered
    came back so soon. Callers who play a chunk between two requests are never waited for.
    A request is never split; one larger than `max_batch_size` is a batch of its own.

    Args:
        infer: takes the arguments of `BasePolicy.infer`, and `leftovers` if a request of the batch
            has some.
        max_batch_size: rows.
        max_wait_ms: milliseconds that a batch waits for company at most, while `infer` is idle.
        statistics: where batches and answers are counted.
    """

    def __init__(
        self,
        infer: Callable[..., Prediction],
        max_batch_size: int,
        max_wait_ms: float,
        statistics: ReplicaStatistics,
    ) -> None:
        self._infer = infer
        self._max_rows = max_batch_size
        self._max_wait = max_wait_ms / 1000.0
        self._rows_answered = self._rows_returned = 0  # by the last batch; soon after it
        self._returned_by = 0.0
        self._lock_step = False
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._rows_waiting = 0
        self._rows_in_work = 0
        self._closed = False
        self._arrival = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._consumer: asyncio.Task[None] | None = None
        self._worker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="infer")
        self._statistics = statistics

    @property
    def queue_depth(self) -> int:
        """Rows that wait or are being inferred."""
        return self._rows_waiting + self._rows_in_work

    async def submit(self, request: Request) -> Answer:
        """What becomes of a request, see `Answer`.

        Raises:
            Exception: whatever `infer` raised for the batch.
        """
        if self._closed:
            self._statistics.refused += 1
            return Answer("draining")
        if self._consumer is None:
            self._consumer = asyncio.create_task(self._consume())
        now = time.monotonic()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(request, now, answer))
        self._rows_waiting += request.rows
        if now <= self._returned_by:
            self._rows_returned += request.rows
        self._empty.clear()
        self._statistics.depth(self.queue_depth, now)
        self._arrival.set()
        return await answer

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
            if batch := self._take():
                await self._serve(batch)
            if not self._waiting:
                self._empty.set()

    async def _gather(self) -> None:
        """Return when a batch is due."""
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        left = self._returned_by - time.monotonic() if self._lock_step else 0.0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left)):
                while (
                    self._rows_returned < self._rows_answered
                    and self._rows_waiting < self._max_rows
                    and not self._closed
                ):
                    self._arrival.clear()
                    await self._arrival.wait()

    def _take(self) -> list[Waiting]:
        """The next batch; requests whose callers have gone or whose time is over are left out."""
        batch: list[Waiting] = []
        rows, now = 0, time.monotonic()
        while self._waiting and (not batch or self._fits(batch[0].request, rows)):
            one = self._waiting.popleft()
            self._rows_waiting -= one.request.rows
            if one.answer.done():
                continue
            if one.arrived + one.request.expires_in_s < now:
                one.answer.set_result(Answer("not begun in time"))
                continue
            batch.append(one)
            rows += one.request.rows
        return batch

    def _fits(self, first: Request, rows: int) -> bool:
        """The next request may join a batch of `rows` rows that begins with `first`."""
        request = self._waiting[0].request
        return (
            rows + request.rows <= self._max_rows
            and (request.seeds is None) == (first.seeds is None)  # one without would spoil them all
            and request.weights == first.weights
        )

    async def _serve(self, batch: list[Waiting]) -> None:
        self._rows_in_work = sum(one.request.rows for one in batch)
        depth, started = self.queue_depth, time.monotonic()
        self._statistics.started(depth, started)
        try:
            requests = [one.request for one in batch]
            answer = await asyncio.get_running_loop().run_in_executor(
                self._worker, lambda: self._infer(**merge(requests))
            )
            self._deliver(batch, answer, depth)
        except Exception as error:  # goes to the callers, the next batch may well succeed
            self._statistics.consecutive_failures += 1
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
        else:
            self._statistics.consecutive_failures = 0
        rows, self._rows_in_work = self._rows_in_work, 0
        now = time.monotonic()
        self._lock_step = 2 * self._rows_returned >= self._rows_answered > 0
        self._rows_answered, self._rows_returned = rows, 0
        self._returned_by = now + min(self._max_wait, WAIT_SHARE * (now - started))
        self._statistics.finished(rows, self.queue_depth, now)

    def _deliver(self, batch: list[Waiting], answer: Prediction, depth: int) -> None:
        if len(answer.chunks) != self._rows_in_work:
            raise RuntimeError(
                f"the base policy answered {len(answer.chunks)} rows to a request of "
                f"{self._rows_in_work}"
            )
        start, now = 0, time.monotonic()
        for one in batch:
            rows = slice(start, start + one.request.rows)
            start = rows.stop
            if one.answer.done():  # the caller may have gone
                continue
            own = answer.rows(rows)
            one.answer.set_result(Answer("answered", own, depth - one.request.rows))
            self._statistics.answered(now - one.arrived)


def merge(batch: list[Request]) -> dict[str, Any]:
    """The arguments of one `infer` call for all rows of `batch`, in order."""
    merged: dict[str, Any] = {
        "observations": {
            key: np.concatenate([request.observations[key] for request in batch])
            for key in batch[0].observations
        },
        "tasks": [task for request in batch for task in request.tasks],
        "env_ids": [env for request in batch for env in request.env_ids],
        "seeds": None,
    }
    if batch[0].weights is not None:
        merged["weights"] = batch[0].weights
    if batch[0].seeds is not None:
        merged["seeds"] = [seed for request in batch for seed in request.seeds or ()]
    given = [request.leftovers for request in batch if request.leftovers is not None]
    if given:  # policies without rtc know no such argument
        nothing = np.full((1, *given[0].shape[1:]), np.nan, dtype=np.float32)
        merged["leftovers"] = np.concatenate(
            [
                np.repeat(nothing, request.rows, axis=0) if left is None else left
                for request in batch
                for left in [request.leftovers]
            ]
        )
    return merged
