"""Updates in a thread of the learner's process, so that whoever feeds it never waits for them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pld_ray.rllib.learners import LearnerReport, Work

SLICE_UPDATES = 20
"""Updates between two moments at which the networks may be read."""


class UpdateThread:
    """Works through `Work` in the order in which it was submitted.

    Args:
        store: writes batches into the replay and sets the residual scale.
        update: makes n updates and returns their metrics, empty while there is nothing to learn
            from.
        publish: makes the networks available to the runners; called with the number of updates.
        publish_interval: updates between two publications.
        updates: made before this thread began.
    """

    def __init__(
        self,
        store: Callable[[Work], None],
        update: Callable[[int], dict[str, float]],
        publish: Callable[[int], Any],
        publish_interval: int,
        updates: int = 0,
    ) -> None:
        self._store, self._update, self._publish = store, update, publish
        self._publish_interval = publish_interval
        self._updates = self._published_at = updates
        self._queue: queue.Queue[Work | None] = queue.Queue()
        self._networks = threading.Lock()
        self._readers = 0  # who want to read the networks
        self._state = threading.Condition()
        self._report = LearnerReport(weights=publish(updates))
        self._error: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue work."""
        self._queue.put(work)

    def poll(self, wait_s: float = 0.0) -> LearnerReport:
        """What was done since the last call; waits for an update at most `wait_s` seconds.

        Raises:
            Exception: whatever stopped the thread.
        """
        with self._state:
            if wait_s > 0:
                self._state.wait_for(lambda: self._report.updates or self._error, wait_s)
            report, self._report = self._report, LearnerReport()
            if self._error is not None:
                raise self._error
        return report

    def drain(self) -> None:
        """Return when everything submitted is done, or the thread was stopped by an error."""
        self._queue.join()

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def abandon(self) -> None:
        """End the thread after the slice of updates that it is at; the rest is not done."""
        self._abandoned = True
        self.stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Between two slices of updates: the networks can be read."""
        with self._state:
            self._readers += 1
        try:
            with self._networks:
                yield
        finally:
            with self._state:
                self._readers -= 1
                self._state.notify_all()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                # after an error the rest is only taken off the queue
                if self._error is None and not self._abandoned:
                    self._do(work)
            except BaseException as error:
                with self._state:
                    self._error = error
                    self._state.notify_all()
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _do(self, work: Work) -> None:
        with self._networks:
            self._store(work)
        left = work.num_updates
        while left > 0 and not self._abandoned:
            count = min(left, SLICE_UPDATES)
            left -= count
            weights = None
            with self._networks:
                metrics = self._update(count)
                self._updates += count
                if self._updates - self._published_at >= self._publish_interval:
                    weights = self._publish(self._updates)
                    self._published_at = self._updates
            with self._state:
                self._report.updates += count
                self._report.weights = weights or self._report.weights
                if metrics:
                    self._report.metrics.append(metrics)
                self._state.notify_all()
                self._state.wait_for(lambda: self._readers == 0)  # a bare lock would starve them
