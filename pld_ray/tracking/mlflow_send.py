"""From the records of an outbox to MLflow, through outages."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pld_ray.tracking.mlflow_store import REFUSALS, restoring, run_lifecycle
from pld_ray.tracking.mlflow_values import shorten
from pld_ray.tracking.outbox import Outbox, Record

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("pld_ray.tracking")

GATHER_S = 1.0
"""Seconds between two batches, so that many small reports travel in one request."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 15.0


class Sender:
    """A thread that sends the records of some queues in order, in batches of one kind, and repeats
    what failed; it never holds up the caller.

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


class MlflowReceiver:
    """Brings batches of records to one MLflow run; a repeated batch changes nothing there.

    MLflow ignores a metric point that equals one it has in key, time, step and value, a parameter
    and a tag that has this value already, and stores an artifact of the same name over the old one.

    Args:
        tracking_uri, run_id: where to.
        run_dir: what the paths of artifacts are relative to.
    """

    def __init__(self, tracking_uri: str, run_id: str, run_dir: pathlib.Path) -> None:
        self.tracking_uri, self.run_id, self.run_dir = tracking_uri, run_id, run_dir
        self._client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """Made at the first use, because that opens a database."""
        if self._client is None:
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(self.tracking_uri, self.tracking_uri)
        return self._client

    def __call__(self, records: Sequence[Record]) -> None:
        """Send records of one kind.

        Raises:
            Exception: the server is away, or the run was deleted; anything that it refuses for
                good is reported in the log and left out.
        """
        from mlflow.entities import Metric, Param, RunTag

        kind = records[0]["kind"]
        if kind == "metrics":
            points = [
                Metric(key, value, record["time"], record["step"])
                for record in records
                for key, value in record["values"].items()
            ]
            self._log_batch("metrics", points)
        elif kind in ("params", "tags"):
            entity = Param if kind == "params" else RunTag
            pairs = {k: v for record in records for k, v in record["values"].items()}
            self._log_batch(kind, [entity(k, v) for k, v in pairs.items()])
        elif kind == "artifact":
            self._log_artifact(records[0])
        elif kind == "status":
            self._set_status(records[0])
        else:
            log.warning("a record of kind %r is not sent: a newer pld-ray wrote it", kind)

    def _log_batch(self, field: str, items: Sequence[Any]) -> None:
        """Send; what MLflow refuses is halved until the bad item stands alone."""
        try:
            self.client.log_batch(self.run_id, synchronous=True, **{field: items})
        except Exception as error:
            self._check_refused(error)
            if len(items) == 1:
                log.warning("MLflow refused %s %s: %s", field, items[0].key, shorten(error))
                return
            half = len(items) // 2
            self._log_batch(field, items[:half])
            self._log_batch(field, items[half:])

    def _check_refused(self, error: Exception) -> None:
        """Raise unless the server will never take what it was sent, while the run is there."""
        if getattr(error, "error_code", None) not in REFUSALS:
            raise error
        lifecycle = run_lifecycle(self.client, self.run_id)
        if lifecycle != "active":
            restore = restoring(self.client, self.tracking_uri, self.run_id)
            raise RuntimeError(
                f"run {self.run_id} is {lifecycle}; {restore} brings it back"
            ) from error

    def _log_artifact(self, record: Record) -> None:
        path, folder = self.run_dir / record["path"], record["folder"]
        if not path.exists():
            log.warning("%s was deleted before it could be sent to MLflow", path)
            return
        try:
            if path.is_dir():
                target = "/".join(filter(None, [folder, path.name]))
                self.client.log_artifacts(self.run_id, str(path), target)
            else:
                self.client.log_artifact(self.run_id, str(path), folder)
        except Exception as error:
            self._check_refused(error)
            log.warning("MLflow refused %s: %s", path, shorten(error))

    def _set_status(self, record: Record) -> None:
        if record["status"] == "RUNNING":
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            self.client.set_terminated(self.run_id, record["status"], record["ended"])


def relative_path(path: str | os.PathLike[str], run_dir: pathlib.Path) -> str:
    """`path` relative to the run's folder, so that the folder may move; absolute if outside."""
    local = pathlib.Path(path).resolve()
    return str(local.relative_to(run_dir)) if local.is_relative_to(run_dir) else str(local)
