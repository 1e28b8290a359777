"""The threads that send a run's outbox to MLflow, during the run and after it."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from dataclasses import dataclass

from pld_ray.files.lock import FolderLock, Owner
from pld_ray.runs.journal import Journal
from pld_ray.runs.layout import METRICS_FILE, MLFLOW_FILE
from pld_ray.tracking.mlflow_record import check_sqlite, read_record
from pld_ray.tracking.mlflow_send import MlflowReceiver, Sender
from pld_ray.tracking.mlflow_store import SENDING_ADVICE, check_run, logged_before
from pld_ray.tracking.outbox import (
    ARTIFACTS,
    METRICS,
    VALUES,
    Outbox,
    Points,
    sent_state,
)
from pld_ray.tracking.quiet import quick_mlflow

log = logging.getLogger("pld_ray.tracking")

REQUEST_TIMEOUT_S = 30
PATIENCE_S = 10.0
"""Seconds that sending goes on while nothing but errors comes back."""
SEND_LEFT_S = 3600.0
"""Seconds that `send_left` takes at most."""


class Sending:
    """The threads that send an outbox to MLflow."""

    def __init__(self, outbox: Outbox, run_dir: pathlib.Path, tracking_uri: str) -> None:
        self._quick = quick_mlflow(REQUEST_TIMEOUT_S)
        self._quick.__enter__()
        receiver = MlflowReceiver(tracking_uri, outbox.run_id, run_dir)
        where = f"MLflow at {tracking_uri}"
        self._senders = (
            Sender(outbox, (METRICS, VALUES), receiver, where),
            Sender(outbox, (ARTIFACTS,), receiver, f"{where}, artifacts,"),
        )

    def drain(self, budget_s: float, patience_s: float) -> bool:
        """Send all there is, for `budget_s` seconds at most; says whether nothing is left."""
        deadline = time.monotonic() + budget_s
        for sender in self._senders:
            sender.hurry()
        left = [s.drain(deadline - time.monotonic(), patience_s) for s in self._senders]
        return all(left)

    def close(self, lock: FolderLock) -> None:
        """Stop the threads and free the folder.

        A thread that is in a request keeps the folder until the request is over or the process
        ends; that is not waited for.
        """

        def stop() -> None:
            for sender in self._senders:
                sender.stop()
            self._quick.__exit__(None, None, None)  # MLflow's own limits retry for minutes, aloud
            lock.release()

        closing = threading.Thread(target=stop, daemon=True)
        closing.start()
        closing.join(1.0)


def claim(
    run_dir: pathlib.Path, wait_s: float, alone: bool = False, driver: Owner | None = None
) -> FolderLock:
    """The lock of a run's folder, or a share in the one that this process or its driver holds.

    Raises:
        BlockingIOError: another process works there, or with `alone` this one.
    """
    lock = FolderLock(run_dir)
    owner = lock.claim(wait_s, alone, driver)
    if owner is not None:
        raise BlockingIOError(f"{run_dir} is in use by {owner}")
    return lock


def known_past(
    run_dir: pathlib.Path, tracking_uri: str, run_id: str
) -> tuple[Points, dict[str, str]] | None:
    """What an MLflow run that is continued holds, asked of the server.

    A store that is away does not matter where the folder knows what was sent there before.

    Returns:
        None where the folder knows it.

    Raises:
        ConnectionError: the store cannot be used.
        MissingRunError: it has no such run.
    """
    known = sent_state(run_dir, run_id) is not None
    record = read_record(run_dir)
    same_store = record is not None and record["tracking_uri"] == tracking_uri
    try:
        check_run(tracking_uri, run_id)
        return None if known else logged_before(tracking_uri, run_id)
    except ConnectionError as error:
        if not (known and same_store):
            raise
        log.warning("%s. What is logged is kept in %s until it is back", error, run_dir)
        return None


@dataclass(frozen=True)
class SendReport:
    """What `send_left` did."""

    tracking_uri: str
    run_id: str
    num_sent: int
    num_left: int


def send_left(run_dir: str | os.PathLike[str], tracking_uri: str | None = None) -> SendReport:
    """Send what a run left behind when it ended without its MLflow server.

    Args:
        run_dir: folder of the run; it must not be running.
        tracking_uri: where the store is now; None is where it was.

    Raises:
        FileNotFoundError: the folder has no MLflow run.
        ConnectionError: the store cannot be used.
        MissingRunError: the run is not there any more.
        BlockingIOError: the run is going on.
        ValueError: a file is damaged.
    """
    folder = pathlib.Path(run_dir).resolve()
    record = read_record(folder)
    if record is None:
        raise FileNotFoundError(f"{folder / MLFLOW_FILE} is missing: this run was not tracked")
    uri, run_id = tracking_uri or record["tracking_uri"], record["run_id"]
    lock = claim(folder, 1.0, alone=True)
    try:
        if sent_state(folder, run_id) is None:
            lock.release()
            return SendReport(uri, run_id, 0, 0)
        check_sqlite(uri)
        check_run(uri, run_id, SENDING_ADVICE)
        outbox = Outbox(folder, run_id, Journal(folder / METRICS_FILE))
    except BaseException:
        lock.release()
        raise
    found = outbox.num_pending()
    sending = Sending(outbox, folder, uri)
    try:
        sending.drain(SEND_LEFT_S, PATIENCE_S)
    finally:
        sending.close(lock)
    left = outbox.num_pending()
    return SendReport(uri, run_id, found - left, left)
