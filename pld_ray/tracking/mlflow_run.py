"""One MLflow run of one training run: each point exactly once, and never in training's way."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pld_ray.tracking.folder_lock import FolderLock
from pld_ray.tracking.mlflow_outgoing import (
    PATIENCE_S,
    SPOOL_FOLDER,
    Outgoing,
    continue_run,
    send_spool,
)
from pld_ray.tracking.mlflow_record import (
    RECORD_FILE,
    read_record,
    sqlite_path,
    sqlite_uri,
    write_record,
)
from pld_ray.tracking.mlflow_send import BATCH_LIMITS, relative_path
from pld_ray.tracking.mlflow_store import MissingRunError, checked_tags, create_run
from pld_ray.tracking.mlflow_values import finite_metrics, flatten_params
from pld_ray.tracking.spool import Spool
from pld_ray.tracking.system_metrics import SystemMetrics

__all__ = ["MissingRunError", "MlflowRun", "read_record", "send_spool"]

log = logging.getLogger("pld_ray.tracking")

STATUSES = ("FINISHED", "FAILED", "KILLED")
FINISH_BUDGET_S = 120.0
CHECKPOINT_FILES = ("learner.json", "learner.safetensors", "residual_sac.json", "trainer.json")
"""What of a checkpoint goes to MLflow: networks, optimisers, counters; not the replay."""


class MlflowRun:
    """Logs one run; no call but the first and `finish` waits for a server or a database.

    Whatever is logged is appended to files in `<run_dir>/mlflow_spool` and sent by a thread. What
    could not be sent when the run ends stays there, for a resume or `send_spool`. The run's id is
    kept in `<run_dir>/mlflow_run.json`; `MlflowRun.resume` continues from it, and leaves out the
    points that were logged before. As a context manager it finishes as FINISHED, FAILED (after an
    exception) or KILLED (after an interrupt).

    Args:
        run_dir: folder of the training run.
        experiment_name: MLflow experiment, made if it does not exist.
        run_name: shown in MLflow; None lets MLflow invent one.
        tracking_uri: MLflow's; None is `sqlite:///<store_dir>/mlflow.db`. Artifacts of a sqlite
            store lie beside its file, in `mlartifacts/`.
        store_dir: folder of the default store, shared by runs that are to be compared; None is
            `run_dir`.
        run_id: continue this run instead of making one.
        parent_run_id: MLflow run under which this one is shown (a sweep's).
        tags: of the run.
        system_metrics: log `system/...` about every ten seconds.

    Raises:
        ConnectionError: the store cannot be opened or does not answer within seconds. A run that
            is continued where it was logged before does not need an answer.
        MissingRunError: (a ValueError) `run_id` is not there, or the experiment was deleted.
        BlockingIOError: another process logs this run.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        experiment_name: str = "pld-ray",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        system_metrics: bool = False,
    ) -> None:
        self.run_dir = pathlib.Path(run_dir).resolve()
        self.tracking_uri = tracking_uri or sqlite_uri(store_dir or self.run_dir)
        self._finished = False
        self._time = 0
        self._step: int | None = None
        self._lock = threading.RLock()
        all_tags = dict(tags or {})
        if parent_run_id is not None:
            all_tags["mlflow.parentRunId"] = parent_run_id
        self._sampler = SystemMetrics() if system_metrics else None
        lock = FolderLock(self.run_dir / SPOOL_FOLDER)
        try:
            past = None
            if run_id is not None:
                self.run_id, past = run_id, continue_run(self.run_dir, self.tracking_uri, run_id)
            else:
                uri = self.tracking_uri
                self.run_id = create_run(uri, experiment_name, run_name, all_tags)
            write_record(self.run_dir, self.tracking_uri, self.run_id)
            self._outgoing = Outgoing(
                self.run_dir, self.tracking_uri, self.run_id, lock, past, self._sample_system
            )
        except BaseException:
            lock.release()
            raise
        if run_id is not None:
            self._append({"kind": "status", "status": "RUNNING", "time": _now()})
            self.set_tags(all_tags)

    @classmethod
    def resume(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        system_metrics: bool = False,
    ) -> MlflowRun:
        """Continue the MLflow run of `run_dir`; `tracking_uri` is for a store that has moved.

        Raises:
            FileNotFoundError: `run_dir` has no record of a run, or its sqlite store is gone.
            ConnectionError, MissingRunError, BlockingIOError: as for the constructor.
        """
        record = read_record(run_dir)
        if record is None:
            raise FileNotFoundError(
                f"{pathlib.Path(run_dir) / RECORD_FILE} is missing: this run was not tracked with "
                "MLflow; start a new MLflow run for it with MlflowRun(run_dir, ...)"
            )
        uri = tracking_uri or record["tracking_uri"]
        store = sqlite_path(uri)
        if store is not None and not store.is_file():
            raise FileNotFoundError(
                f"{store}, the MLflow store of this run, is missing: give its new place with "
                "--tracking.uri=sqlite:///..., or train on with --tracking.enabled=false"
            )
        return cls(
            run_dir,
            tracking_uri=uri,
            run_id=record["run_id"],
            tags=tags,
            system_metrics=system_metrics,
        )

    # --- logging ---------------------------------------------------------------------------------

    def log_params(self, params: Any) -> None:
        """Log a nested mapping or dataclass as `a.b.c`.

        MLflow never changes a parameter, so one that a resumed run has changed is logged as the tag
        `changed.<name>` instead.
        """
        flat = flatten_params(params)
        with self._lock:
            known = dict(self._outgoing.points.ledger.params)
            self._append_values("params", {k: v for k, v in flat.items() if k not in known})
        changed = {k: v for k, v in flat.items() if known.get(k, v) != v}
        if changed:
            log.warning(
                "MLflow keeps the first value of %s; the new ones are tags changed.<name>",
                ", ".join(changed),
            )
            self.set_tags({f"changed.{k}"[:250]: v for k, v in changed.items()})

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log numbers at `step` (environment steps), those left out that were logged before.

        None is skipped; NaN and infinity are not logged but counted in `tracking/non_finite`.

        Raises:
            TypeError: a value is no number.
        """
        values = finite_metrics(metrics)
        with self._lock:
            self._step = max(int(step), self._step or 0)
            new = self._outgoing.points.ledger.new_points(values, int(step))
            # MLflow takes two points that are equal in key, time, step and value for one
            self._time = max(_now(), self._time + 1)
            self._append_values("metrics", new, step=int(step), time=self._time)

    def restored(self, step: int) -> None:
        """Training went back to a checkpoint at `step`: points that come again are left out."""
        with self._lock:
            self._outgoing.points.ledger.restore()
            self._step = step
        self.set_tags({"resumed_at_step": str(step)})

    def set_tag(self, key: str, value: str) -> None:
        """Set one tag of the run."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._append_values("tags", checked_tags(tags))

    def log_artifact(self, path: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Copy a file, or a folder with all it holds, to the run's artifacts; it must stay there.

        Args:
            path: local file or folder.
            artifact_path: folder within the artifacts; None is their root.

        Raises:
            FileNotFoundError: `path` does not exist.
        """
        local = pathlib.Path(path).resolve()
        if not local.exists():
            raise FileNotFoundError(f"cannot log {local} to MLflow: no such file or folder")
        record = {"kind": "artifact", "path": relative_path(local, self.run_dir)}
        self._append({**record, "folder": artifact_path}, self._outgoing.artifacts)

    def log_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Copy the networks and counters of a checkpoint to the artifacts, without its replay.

        Raises:
            FileNotFoundError: the folder holds no checkpoint.
        """
        folder = pathlib.Path(path)
        files = [folder / name for name in CHECKPOINT_FILES if (folder / name).is_file()]
        for file in files or [folder / CHECKPOINT_FILES[0]]:
            self.log_artifact(file, f"checkpoints/{folder.name}")

    def _append_values(self, kind: str, values: Mapping[str, Any], **fields: Any) -> None:
        """One record, or several where MLflow's limits ask for it."""
        items = list(values.items())
        for start in range(0, len(items), BATCH_LIMITS[kind]):
            part = dict(items[start : start + BATCH_LIMITS[kind]])
            self._append({"kind": kind, **fields, "values": part})

    def _append(self, record: Mapping[str, Any], spool: Spool | None = None) -> None:
        if self._finished and record["kind"] != "status":
            raise RuntimeError(f"MLflow run {self.run_id} is finished: nothing can be logged to it")
        try:
            (spool or self._outgoing.points).append(record)
        except OSError as error:
            log.error("not logged to MLflow, %s cannot be written: %s", self.run_dir, error)

    def _sample_system(self) -> None:
        """In the sender's thread: one point of each system metric at a step, at most."""
        with self._lock:
            if self._sampler is None or self._finished or self._step is None:
                return
            if values := self._sampler.sample(self._step):
                self.log_metrics(values, self._step)

    # --- sending ---------------------------------------------------------------------------------

    @property
    def num_queued(self) -> int:
        """Values and artifacts that wait to be sent."""
        return self._outgoing.num_pending

    def flush(self, budget_s: float = 60.0, patience_s: float = PATIENCE_S) -> bool:
        """Send what is queued now, for `budget_s` seconds at most; says whether nothing is left."""
        return self._outgoing.drain(budget_s, patience_s)

    def finish(
        self,
        status: str = "FINISHED",
        budget_s: float = FINISH_BUDGET_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Send what is queued and close the run; a second call does nothing.

        Args:
            status: FINISHED, FAILED or KILLED.
            budget_s: seconds at most; what is left stays in the spool.
            patience_s: of these, seconds in which nothing but errors comes back.
        """
        if status not in STATUSES:
            raise ValueError(f"status={status!r}: must be one of {', '.join(STATUSES)}")
        with self._lock:
            if self._finished:
                return
            self._sample_system()  # a short run has one point too
            self._finished = True
        ended = _now()
        self.flush(budget_s, patience_s)
        self._append({"kind": "status", "status": status, "time": ended})
        self.flush(min(10.0, budget_s), min(1.0, patience_s))
        self._outgoing.close()
        if self.num_queued:
            log.warning(
                "MLflow run %s is incomplete: %d values and %d artifacts wait in %s; send them "
                "when the server is back with: pld-ray send %s",
                self.run_id,
                self._outgoing.points.num_pending,
                self._outgoing.artifacts.num_pending,
                self._outgoing.folder,
                self.run_dir,
            )

    def __enter__(self) -> MlflowRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")


def _now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)
