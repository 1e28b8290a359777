"""Gathers concurrent requests into batches (asyncio, one consumer)."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass
class Request:
    """Rows of one caller, and where its answer goes."""

    observations: Mapping[str, np.ndarray]
    tasks: list[str]
    env_ids: list[int]
    seeds: list[int] | None
    answer: asyncio.Future[np.ndarray]
    arrived: float = dataclasses.field(default_factory=time.monotonic)


Infer = Callable[..., np.ndarray]


class Batcher:
    """Collects requests until `max_batch_size` rows wait or the oldest waited `max_wait_ms`.

    `infer` runs in a worker thread, one batch at a time, so requests keep arriving meanwhile: a
    busy replica forms full batches without waiting for its timer. A request is never split; one
    larger than `max_batch_size` is a batch of its own.

    Args:
        infer: `BasePolicy.infer`.
        max_batch_size: rows.
        max_wait_ms: milliseconds that the first request of a batch may wait for company.
    """

    def __init__(self, infer: Infer, max_batch_size: int, max_wait_ms: float) -> None:
        self._infer = infer
        self._max_rows = max_batch_size
        self._max_wait = max_wait_ms / 1000.0
        self._waiting: collections.deque[Request] = collections.deque()
        self._arrival = asyncio.Event()
        self._consumer: asyncio.Task[None] | None = None
        self._rows_in_work = 0
        self.batch_sizes: collections.Counter[int] = collections.Counter()
        self.latencies: collections.deque[float] = collections.deque(maxlen=1000)

    @property
    def queue_depth(self) -> int:
        """Rows that wait or are being inferred."""
        return self._rows_waiting() + self._rows_in_work

    async def submit(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: list[str],
        env_ids: list[int],
        seeds: list[int] | None,
    ) -> np.ndarray:
        """The caller's own rows' chunks [B, T, A]."""
        if self._consumer is None:
            self._consumer = asyncio.create_task(self._consume())
        future = asyncio.get_running_loop().create_future()
        request = Request(observations, tasks, env_ids, seeds, future)
        self._waiting.append(request)
        self._arrival.set()
        return await future

    async def _consume(self) -> None:
        while True:
            await self._gather()
            batch = self._take()
            self._rows_in_work = sum(len(r.tasks) for r in batch)
            try:
                chunks = await asyncio.to_thread(self._infer, **merged(batch))
            except Exception as error:  # goes to the callers, the next batch may well succeed
                for request in batch:
                    request.answer.set_exception(error)
            else:
                self._deliver(batch, chunks)
            self._rows_in_work = 0

    async def _gather(self) -> None:
        """Return when a batch is due."""
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        due = self._waiting[0].arrived + self._max_wait
        while self._rows_waiting() < self._max_rows and (left := due - time.monotonic()) > 0:
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[Request]:
        batch = [self._waiting.popleft()]
        rows = len(batch[0].tasks)
        while self._waiting and rows + len(self._waiting[0].tasks) <= self._max_rows:
            batch.append(self._waiting.popleft())
            rows += len(batch[-1].tasks)
        return batch

    def _deliver(self, batch: list[Request], chunks: np.ndarray) -> None:
        start, now = 0, time.monotonic()
        for request in batch:
            end = start + len(request.tasks)
            if not request.answer.done():  # the caller may have gone
                request.answer.set_result(chunks[start:end])
            self.latencies.append(now - request.arrived)
            start = end
        self.batch_sizes[start] += 1

    def _rows_waiting(self) -> int:
        return sum(len(request.tasks) for request in self._waiting)


def merged(batch: list[Request]) -> dict[str, Any]:
    """The arguments of one `infer` call for all rows of `batch`, in order."""
    keys = batch[0].observations.keys()
    with_seeds = all(request.seeds is not None for request in batch)
    return {
        "observations": {k: np.concatenate([r.observations[k] for r in batch]) for k in keys},
        "tasks": [task for r in batch for task in r.tasks],
        "env_ids": [env for r in batch for env in r.env_ids],
        "seeds": [seed for r in batch for seed in r.seeds or ()] if with_seeds else None,
    }
