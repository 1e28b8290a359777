"""A thread that empties queues of an outbox, through outages, and never holds up the caller."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pld_ray.tracking.outbox import Outbox, Record

log = logging.getLogger("pld_ray.tracking")

GATHER_S = 1.0
"""Seconds between two batches, so that many small reports travel in one request."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 15.0


class Sender:
    """Sends the records of some queues in order, in batches of one kind, and repeats what failed.

    An outage is any error of `send`. It is reported when a second attempt fails too, and once more
    when it ends.

    Args:
        outbox: what to send.
        queues: of the outbox. Nobody else may send from them.
        send: sends a batch, or raises; it must not matter if a batch is sent twice.
        name: what the records are sent to, for the log.
    """

    def __init__(
        self,
        outbox: Outbox,
        queues: Sequence[str],
        send: Callable[[Sequence[Record]], None],
        name: str,
    ) -> None:
        self._outbox, self._queues, self._send, self._name = outbox, queues, send, name
        self._failures = 0
        self._reported = False
        self._failing_since: float | None = None
        self._hurry = self._retry_now = self._stopped = False
        self._attempted = threading.Condition()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pld-ray-tracking", daemon=True)
        self._thread.start()

    def drain(self, budget_s: float, patience_s: float) -> bool:
        """Send all there is, without pauses; says whether nothing is left.

        Args:
            budget_s: seconds at most.
            patience_s: of these, seconds in which nothing but errors comes back.
        """
        deadline = time.monotonic() + budget_s
        self.hurry()
        with self._attempted:
            while self._num_pending and time.monotonic() < deadline:
                since = self._failing_since
                if since is not None and time.monotonic() - since >= patience_s:
                    break
                self._attempted.wait(min(0.5, max(0.0, deadline - time.monotonic())))
        self._hurry = False
        return not self._num_pending

    def hurry(self) -> None:
        """Try at once, and without pauses between batches, until a `drain` is over."""
        if not self._hurry:
            self._failing_since = None
        self._hurry = self._retry_now = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread after what it is sending at the moment."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        due = 0.0
        while not self._stopped:
            try:
                if time.monotonic() >= due or self._retry_now:
                    self._retry_now = False
                    due = time.monotonic() + self._attempt()
            except Exception:  # a full disk, a defect: training must not lose its tracking for it
                log.exception("%s: the sending thread goes on after an error", self._name)
                due = time.monotonic() + LONGEST_RETRY_S
            with self._attempted:
                self._attempted.notify_all()
            pause = min(GATHER_S, due - time.monotonic())
            if pause > 0:
                self._wake.wait(pause)
                self._wake.clear()

    def _attempt(self) -> float:
        """Send one batch; seconds until the next attempt."""
        batch = self._outbox.next_batch(self._queues)
        if not batch:
            return GATHER_S
        try:
            self._send(batch)
        except Exception as error:  # whatever a store, a driver or an artifact back end raises
            return self._failed(error)
        if not self._stopped:  # what was too slow for the end of the run is sent again
            self._outbox.mark_sent(batch)
        self._succeeded()
        return 0.0 if self._num_pending >= 1000 or self._hurry else GATHER_S

    @property
    def _num_pending(self) -> int:
        return self._outbox.num_pending(self._queues)

    def _failed(self, error: Exception) -> float:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        self._failures += 1
        if self._failures == 2:  # one failure may be a busy database
            self._reported = True
            log.warning(
                "%s cannot be reached (%s); training goes on, what is logged is kept in %s and "
                "sent when it is back",
                self._name,
                shorten(error),
                self._outbox.path.parent,
            )
        if self._hurry:
            return FIRST_RETRY_S
        return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))

    def _succeeded(self) -> None:
        if self._reported:
            log.warning("%s answers again", self._name)
        self._failures, self._reported, self._failing_since = 0, False, None


def shorten(error: BaseException, length: int = 300) -> str:
    """An error as one line; the innermost reason where a request library nests several."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, _, reason = text.rpartition("(Caused by ")
    return reason.removesuffix(")")[:length] if reason != text else text[:length]
