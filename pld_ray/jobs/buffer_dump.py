"""`dump_interval`: the episodes that a run learns from, on disk, beside the training."""

from __future__ import annotations

import pathlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pld_ray.columns import START
from pld_ray.data.dataset_series import DatasetSeries
from pld_ray.data.episode_writer import Recording
from pld_ray.rllib.intake import fetch_episodes
from pld_ray.rollout.episode import split_episodes
from pld_ray.rollout.messages import ReplayBatch
from pld_ray.runs.layout import BUFFER, DEMO_BUFFER

BACKLOG = 8
"""Batches that may wait for the disk before training does."""


class BufferDump:
    """What goes into the online and into the offline ring, as datasets in `buffer/` and
    `demo_buffer/` of the run; `start` in the latter marks the rows that may start a window.

    A dataset is closed every `interval` environment steps and before each checkpoint: a run that
    goes back to a checkpoint leaves whole datasets, and has each episode once. One thread writes;
    the driver hands it batches as they are, with columns or, where learners are processes of
    their own, references to them.

    Args:
        folder: of the run.
        recording: what all episodes share.
        interval: environment steps, > 0.
    """

    def __init__(self, folder: pathlib.Path, recording: Recording, interval: int) -> None:
        self.interval = interval
        self._series = {
            "online": DatasetSeries(folder / BUFFER, recording),
            "offline": DatasetSeries(folder / DEMO_BUFFER, recording),
        }
        self._closed = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="buffer dump")
        self._pending: deque[Future[None]] = deque()

    def take(self, batches: Sequence[ReplayBatch]) -> None:
        """Episodes that go into the replay; waits only where the disk is far behind.

        Raises:
            OSError, DataError: what was given before could not be written.
        """
        for batch in batches:
            if batch.kept:  # a run that collects none hands over a batch without columns
                self._submit(self._write, batch)

    def step(self, env_steps: int) -> None:
        """Close the datasets, beside the training, if an interval is over."""
        if env_steps // self.interval > self._closed // self.interval:
            self._close(env_steps)

    def close(self, env_steps: int) -> None:
        """Close the datasets; all that was taken is on the disk when this returns.

        Raises:
            OSError, DataError: it could not be written.
        """
        self._close(env_steps)
        while self._pending:
            self._pending.popleft().result()

    def go_back(self, env_steps: int) -> None:
        """Training goes on from a checkpoint: what was closed after it is put aside."""
        self._closed = max(0, env_steps)
        for series in self._series.values():
            series.go_back(env_steps)

    def stop(self) -> None:
        """End the thread once it has written what it was given; no checkpoint knows of the rest."""
        self._thread.shutdown()

    def _close(self, env_steps: int) -> None:
        self._closed = env_steps
        for series in self._series.values():
            self._submit(series.close, env_steps)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self._pending.append(self._thread.submit(work, *arguments))
        while self._pending and (len(self._pending) > BACKLOG or self._pending[0].done()):
            self._pending.popleft().result()

    def _write(self, batch: ReplayBatch) -> None:
        columns = fetch_episodes(batch)
        if columns is None:  # they died with their node
            return
        if batch.buffer == "offline" and START not in columns:
            columns = {**columns, START: np.ones(len(columns["reward"]), np.bool_)}
        for episode in split_episodes(columns, batch.kept):
            self._series[batch.buffer].add(episode)
