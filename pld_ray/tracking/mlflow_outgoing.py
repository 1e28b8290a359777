"""What of a run waits for MLflow, in `<run_dir>/mlflow_spool`, and the threads that send it."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pld_ray.tracking.folder_lock import FolderLock
from pld_ray.tracking.ledger import Ledger
from pld_ray.tracking.mlflow_record import RECORD_FILE, read_record
from pld_ray.tracking.mlflow_send import BATCH_LIMITS, MlflowReceiver
from pld_ray.tracking.mlflow_store import check_run, ledger_of
from pld_ray.tracking.quiet import mlflow_manners
from pld_ray.tracking.sender import Sender
from pld_ray.tracking.spool import Spool, belongs_to

log = logging.getLogger("pld_ray.tracking")

SPOOL_FOLDER = "mlflow_spool"
POINTS, ARTIFACTS = "points.jsonl", "artifacts.jsonl"
REQUEST_TIMEOUT_S = 30
PATIENCE_S = 10.0
"""Seconds that sending goes on while nothing but errors comes back."""


class Outgoing:
    """Two spools, each with a thread: artifacts that cannot be stored do not hold up the points.

    Args:
        run_dir, tracking_uri, run_id: what is sent, and where to.
        lock: of the spool folder; released by `close`.
        past: what the run holds already, for a spool that is made now.
        tick: called about once a second in the thread that sends the points.
    """

    def __init__(
        self,
        run_dir: pathlib.Path,
        tracking_uri: str,
        run_id: str,
        lock: FolderLock,
        past: Ledger | None = None,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self.folder = run_dir / SPOOL_FOLDER
        self._lock = lock
        self.points = Spool(self.folder / POINTS, run_id, past)
        self.artifacts = Spool(self.folder / ARTIFACTS, run_id)
        self.num_found = self.num_pending
        """Values and artifacts that waited when the spools were opened."""
        self._manners = mlflow_manners(REQUEST_TIMEOUT_S)
        self._manners.__enter__()
        receiver = MlflowReceiver(tracking_uri, run_id, run_dir)
        where = f"MLflow at {tracking_uri}"
        self._senders = (
            Sender(self.points, receiver, where, BATCH_LIMITS, tick),
            Sender(self.artifacts, receiver, f"{where}, artifacts,", {}),
        )

    @property
    def num_pending(self) -> int:
        """Values and artifacts that wait."""
        return self.points.num_pending + self.artifacts.num_pending

    def drain(self, budget_s: float, patience_s: float) -> bool:
        """Send all there is, for `budget_s` seconds at most; says whether nothing is left."""
        deadline = time.monotonic() + budget_s
        for sender in self._senders:
            sender.hurry()
        left = [s.drain(deadline - time.monotonic(), patience_s) for s in self._senders]
        return all(left)

    def close(self) -> None:
        """Stop the threads and close the spools.

        A thread that is in a request keeps the spools, and the lock on them, until the request is
        over or the process ends; that is not waited for.
        """
        self._manners.__exit__(None, None, None)
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(1.0)

    def _close(self) -> None:
        for sender in self._senders:
            sender.stop()
        self.points.close()
        self.artifacts.close()
        self._lock.release()


def continue_run(run_dir: pathlib.Path, tracking_uri: str, run_id: str) -> Ledger | None:
    """See that a run can be logged to again.

    A store that is away does not matter where the folder has a spool that was sent there before.

    Returns:
        What the run holds, asked of the server; None where the folder's spool knows it.

    Raises:
        ConnectionError: the store cannot be used.
        MissingRunError: it has no such run.
    """
    folder = run_dir / SPOOL_FOLDER
    known = belongs_to(folder / POINTS, run_id)
    record = read_record(run_dir)
    same_store = record is not None and record["tracking_uri"] == tracking_uri
    try:
        check_run(tracking_uri, run_id)
        return None if known else ledger_of(tracking_uri, run_id)
    except ConnectionError as error:
        if not (known and same_store):
            raise
        log.warning("%s. What is logged is kept in %s until it is back", error, folder)
        return None


@dataclass(frozen=True)
class SendReport:
    """What `send_spool` did."""

    tracking_uri: str
    run_id: str
    num_sent: int
    num_left: int


def send_spool(
    run_dir: str | os.PathLike[str], tracking_uri: str | None = None, budget_s: float = 3600.0
) -> SendReport:
    """Send what a run left behind when it ended without its MLflow server.

    Args:
        run_dir: folder of the run; it must not be running.
        tracking_uri: where the store is now; None is where it was.
        budget_s: seconds at most.

    Raises:
        FileNotFoundError: the folder has no MLflow run.
        ConnectionError: the store cannot be used.
        MissingRunError: the run is not there any more.
        BlockingIOError: the run is being logged by another process.
    """
    folder = pathlib.Path(run_dir).resolve()
    record = read_record(folder)
    if record is None:
        raise FileNotFoundError(f"{folder / RECORD_FILE} is missing: this run was not tracked")
    uri, run_id = tracking_uri or record["tracking_uri"], record["run_id"]
    if not belongs_to(folder / SPOOL_FOLDER / POINTS, run_id):
        return SendReport(uri, run_id, 0, 0)
    lock = FolderLock(folder / SPOOL_FOLDER, wait_s=1.0)
    try:
        check_run(uri, run_id)
        outgoing = Outgoing(folder, uri, run_id, lock)
    except BaseException:
        lock.release()
        raise
    try:
        outgoing.drain(budget_s, PATIENCE_S)
    finally:
        outgoing.close()
    left = outgoing.num_pending
    return SendReport(uri, run_id, outgoing.num_found - left, left)
