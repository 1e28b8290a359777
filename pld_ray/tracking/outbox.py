"""What of a run waits for MLflow: rows of its journal, and a file of everything else."""

from __future__ import annotations

import pathlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.json_lines import append_line, mend_lines, read_lines
from pld_ray.runs.journal import GIVEN_UP, RESTART, TIME, Journal, Row
from pld_ray.runs.layout import (
    METRICS_FILE,
    MLFLOW_FILE,
    OUTBOX_FILE,
    RESTARTS_FILE,
    SENT_FILE,
    read_json,
)
from pld_ray.tracking.mlflow_values import entity_key

Points = dict[str, tuple[int, int]]
"""Metric -> (greatest step, points at that step)."""
Record = Mapping[str, Any]
"""`kind`, `time` (milliseconds since 1970, unique), and what the kind needs: several `values`, or
an artifact's `path` and `folder`, or a `status`."""

METRICS, VALUES, ARTIFACTS = "metrics", "values", "artifacts"
QUEUE_OF = {"metrics": METRICS, "params": VALUES, "tags": VALUES, "status": VALUES}
BATCH_LIMITS = {"metrics": 1000, "params": 100, "tags": 100}
"""Values that MLflow accepts in one request; of any other kind one record at a time."""


class Outbox:
    """Records of one MLflow run, in the order in which they were logged, until they are sent.

    Metrics are rows of the journal, whose points a restart repeats are left out; everything else
    is a line of `mlflow_outbox.jsonl`. `mlflow_sent.json` holds the time of the last record of each
    queue that was sent, written after each batch: a crash in between sends a batch twice, which
    MLflow takes as once. One thread may append while others send.

    Args:
        run_dir: folder of the run.
        run_id: MLflow run that the records belong to; those of another one do not wait.
        journal: the run's metrics.
        past: points and parameters that the run holds, where the folder does not know it.

    Raises:
        ValueError: a file is damaged.
    """

    def __init__(
        self,
        run_dir: pathlib.Path,
        run_id: str,
        journal: Journal,
        past: tuple[Points, dict[str, str]] | None = None,
    ) -> None:
        self.run_id, self.journal = run_id, journal
        self.path, self._sent_path = run_dir / OUTBOX_FILE, run_dir / SENT_FILE
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Record]] = {
            name: deque() for name in (METRICS, VALUES, ARTIFACTS)
        }
        sent = sent_state(run_dir, run_id) or {}
        self._sent: dict[str, int] = {name: sent.get(name, 0) for name in self._queues}
        self._past = past or (sent.get("points", {}), sent.get("params", {}))
        self._write_sent()
        self.params: dict[str, str] = dict(self._past[1])
        """Every parameter that was ever logged."""
        self.tags: dict[str, str] = {}
        """Every tag that this folder has logged, as it is now."""
        self._last_ms = 0
        for record in mend_lines(self.path):
            self._last_ms = max(self._last_ms, record["time"])
            if record["run_id"] == run_id:
                self._enqueue(record)
        self.reread()

    def reread(self) -> None:
        """Take the journal as it is now: what was opened, or restored to an earlier step."""
        ledger, queue = Ledger(self._past[0]), self._queues[METRICS]
        with self._lock:
            queue.clear()
            self._ledger = ledger
            for row in self.journal.everything():
                if row.get(RESTART):
                    ledger.restart(row.get(GIVEN_UP))
                else:
                    self._enqueue_row(row)
            ledger.restart()

    # --- logging ---------------------------------------------------------------------------------

    def add_row(self, row: Row) -> None:
        """A row that the journal holds now."""
        with self._lock:
            self._enqueue_row(row)

    def append(self, kind: str, **fields: Any) -> None:
        """Anything else, on the disk when this returns.

        Raises:
            OSError: it cannot be written; nothing of it stays.
        """
        with self._lock:
            self._last_ms = self.journal.stamp(self._last_ms)
            record = {"kind": kind, "run_id": self.run_id, "time": self._last_ms, **fields}
            append_line(self.path, record)
            self._enqueue(record)

    def _enqueue_row(self, row: Row) -> None:
        step = row["env_steps"]
        values = self._ledger.new_points(metric_values(row), step)
        time_ms = row.get(TIME, 0)  # a row without is of a release that sent it itself
        if values and time_ms > self._sent[METRICS]:
            record = {"kind": "metrics", "time": time_ms, "step": step, "values": values}
            self._queues[METRICS].append(record)

    def _enqueue(self, record: Record) -> None:
        if record["kind"] == "params":
            self.params |= record["values"]
        elif record["kind"] == "tags":
            self.tags |= record["values"]
        name = QUEUE_OF.get(record["kind"], ARTIFACTS)
        if record["time"] > self._sent[name]:
            self._queues[name].append(record)

    # --- sending ---------------------------------------------------------------------------------

    def num_pending(self, names: Sequence[str] = (METRICS, VALUES, ARTIFACTS)) -> int:
        """Values and artifacts that wait in these queues."""
        with self._lock:
            return sum(weight(record) for name in names for record in self._queues[name])

    def next_batch(self, names: Sequence[str]) -> list[Record]:
        """The oldest records of these queues: of one kind, and no more than MLflow takes."""
        with self._lock:
            waiting = [self._queues[name] for name in names if self._queues[name]]
            if not waiting:
                return []
            queue = min(waiting, key=lambda records: records[0]["time"])
            kind = queue[0]["kind"]
            batch: list[Record] = []
            room = BATCH_LIMITS.get(kind, 0)
            for record in queue:
                room -= weight(record)
                if batch and (record["kind"] != kind or room < 0):
                    break
                batch.append(record)
            return batch

    def mark_sent(self, batch: Sequence[Record]) -> None:
        """Remember that this batch was sent.

        Raises:
            OSError: it cannot be written; it is sent again after a restart.
        """
        with self._lock:
            name = QUEUE_OF.get(batch[0]["kind"], ARTIFACTS)
            self._sent[name] = max(self._sent[name], batch[-1]["time"])
            queue = self._queues[name]
            while queue and queue[0]["time"] <= self._sent[name]:
                queue.popleft()
            self._write_sent()

    def _write_sent(self) -> None:
        points, params = self._past
        state = {"run_id": self.run_id, **self._sent, "points": points, "params": params}
        write_json_atomically(self._sent_path, state)


def sent_state(run_dir: pathlib.Path, run_id: str) -> dict[str, Any] | None:
    """What `mlflow_sent.json` says of this MLflow run; None where it says nothing."""
    state = read_json(run_dir / SENT_FILE)
    marks = all(isinstance(state.get(name), int) for name in (METRICS, VALUES, ARTIFACTS))
    return state if marks and state.get("run_id") == run_id else None


def said_its_end(run_dir: pathlib.Path) -> bool:
    """Whether the last that a run has written of its status is how it ended."""
    records = read_lines(run_dir / OUTBOX_FILE)
    told = [record["status"] for record in records if record.get("kind") == "status"]
    return bool(told) and told[-1] != "RUNNING"


def is_complete(run_dir: pathlib.Path) -> bool:
    """Whether its MLflow run has ended and has all that was logged, as far as whole files say."""
    try:
        run_id = read_json(run_dir / MLFLOW_FILE)["run_id"]
        return said_its_end(run_dir) and num_unsent(run_dir, run_id) == 0
    except (ValueError, KeyError, TypeError):  # whoever goes on with the run says what is wrong
        return False


def num_unsent(run_dir: pathlib.Path, run_id: str) -> int:
    """`Outbox.num_pending` of a run that nobody works on; nothing of it is mended or written.

    Raises:
        ValueError, KeyError, TypeError: a file is damaged.
    """
    sent = sent_state(run_dir, run_id)
    if sent is None:
        return 0
    records = [r for r in read_lines(run_dir / OUTBOX_FILE) if r["run_id"] == run_id]
    waiting = [r for r in records if r["time"] > sent[QUEUE_OF.get(r["kind"], ARTIFACTS)]]
    total, ledger = sum(map(weight, waiting)), Ledger(sent.get("points"))
    rows = read_lines(run_dir / RESTARTS_FILE) + read_lines(run_dir / METRICS_FILE)
    known = {row.get(TIME, n - len(rows)): row for n, row in enumerate(rows)}  # as `everything`
    for _, row in sorted(known.items()):
        if row.get(RESTART):
            ledger.restart(row.get(GIVEN_UP))
        else:
            new = ledger.new_points(metric_values(row), row["env_steps"])
            total += len(new) if row.get(TIME, 0) > sent[METRICS] else 0
    return total


def weight(record: Record) -> int:
    """Values of a record."""
    return len(record["values"]) if "values" in record else 1


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def metric_values(row: Row) -> dict[str, float]:
    """The numbers of a journal's row by MLflow key; text and what is null have no point."""
    return {
        entity_key(name): float(value)
        for name, value in row.items()
        if name not in ("env_steps", TIME) and isinstance(value, int | float)
    }


class Ledger:
    """The newest step of each metric, and how many points lie on it.

    A restart from the newest checkpoint trains through steps again that were logged before a kill,
    with other wall times and perhaps other values. The points of the first pass stay: after
    `restart`, `new_points` lets a metric through only beyond what it had reached by then. Where
    newer checkpoints are given up, so is what was logged after it: all passes, and MLflow takes the
    later one of two points of a step for the newest.

    Args:
        points: that the run has from elsewhere.
    """

    def __init__(self, points: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.points: Points = {key: (step, n) for key, (step, n) in (points or {}).items()}
        self._repeated: Points = dict(self.points)

    def restart(self, given_up_after: int | None = None) -> None:
        """Training goes back to an earlier step: what was logged until now is not logged again.

        Args:
            given_up_after: but for what was logged after this step.
        """
        if given_up_after is not None:
            steps = {key: min(step, given_up_after) for key, (step, _) in self.points.items()}
            self.points = {key: (step, 0) for key, step in steps.items()}
        self._repeated = dict(self.points)

    def new_points(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """The values that were not logged before the last `restart`; they are logged from now on.

        A metric may have several points at one step; as many of them are left out as there were.
        """
        new = {}
        for key, value in values.items():
            reached, count = self._repeated.get(key, (-1, 0))
            if step > reached or (step == reached and count == 0):
                new[key] = value
                self.note(key, step)
            elif step == reached:
                self._repeated[key] = (reached, count - 1)
        return new

    def note(self, key: str, step: int) -> None:
        """The run has one more point."""
        reached, count = self.points.get(key, (-1, 0))
        if step >= reached:
            self.points[key] = (step, count + 1 if step == reached else 1)
