"""One MLflow run of one training run: each point exactly once, and never in training's way."""

from __future__ import annotations

import logging
import os
import pathlib
import shlex
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from pld_ray.files.lock import Owner
from pld_ray.runs.journal import Journal
from pld_ray.runs.layout import METRICS_FILE, MLFLOW_FILE, PROGRESS_FILE, TRAINER_FILE
from pld_ray.tracking.mlflow_record import (
    CHANGED,
    absolute,
    move_artifacts,
    read_record,
    sqlite_path,
    store_now,
    write_record,
)
from pld_ray.tracking.mlflow_send import relative_path
from pld_ray.tracking.mlflow_store import checked_tags, create_run, delete_run
from pld_ray.tracking.mlflow_values import flatten_params
from pld_ray.tracking.outbox import (
    ARTIFACTS,
    BATCH_LIMITS,
    METRICS,
    VALUES,
    Outbox,
    now_ms,
)
from pld_ray.tracking.sending import PATIENCE_S, Sending, claim, known_past

log = logging.getLogger("pld_ray.tracking")

STATUSES = ("FINISHED", "FAILED", "KILLED")
FINISH_BUDGET_S = 120.0
LOCK_WAIT_S = 10.0
CHECKPOINT_FILES = ("learner.json", "learner.safetensors", PROGRESS_FILE, TRAINER_FILE)
"""What of a checkpoint goes to MLflow: networks, optimisers, counters; not the replay."""


class MlflowRun:
    """Sends one run; no call but the first and `finish` waits for a server or a database.

    Metrics are sent from the run's journal, everything else from `mlflow_outbox.jsonl`, by two
    threads: artifacts that cannot be stored do not hold up the rest. What could not be sent when
    the run ends stays in the folder, for a resume or `send_left`. The run's id is kept in
    `mlflow_run.json`; `MlflowRun.resume` continues from it, and leaves out the points that were
    logged before. As a context manager it finishes as FINISHED, FAILED (after an exception) or
    KILLED (after an interrupt).

    Args:
        run_dir: folder of the training run.
        tracking_uri: MLflow's. Artifacts of a sqlite store lie beside its file, in `mlartifacts/`.
        experiment_name: MLflow experiment, made if it does not exist.
        run_name: shown in MLflow; None lets MLflow invent one.
        run_id: continue this run instead of making one.
        parent_run_id: MLflow run under which this one is shown (a sweep's).
        tags: of the run.
        journal: the run's metrics; None opens those of `run_dir`.
        driver: the process that this one works for, where that one holds the folder.

    Raises:
        ConnectionError: the store cannot be opened or does not answer within seconds. A run that
            is continued where it was logged before does not need an answer.
        MissingRunError: (a ValueError) `run_id` is not there, or the experiment was deleted.
        BlockingIOError: another process works in the folder.
        ValueError: a file is damaged.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        tracking_uri: str,
        experiment_name: str = "pld-ray",
        run_name: str | None = None,
        run_id: str | None = None,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        journal: Journal | None = None,
        driver: Owner | None = None,
    ) -> None:
        self.run_dir = pathlib.Path(run_dir).resolve()
        self.tracking_uri = absolute(tracking_uri)
        self._finished = False
        self._made = False
        all_tags = dict(tags or {})
        if parent_run_id is not None:
            all_tags["mlflow.parentRunId"] = parent_run_id
        self._lock = claim(self.run_dir, LOCK_WAIT_S, driver=driver)
        try:
            self.journal = journal or Journal(self.run_dir / METRICS_FILE)
            past = None
            if run_id is None:
                uri = self.tracking_uri
                self.run_id = create_run(uri, experiment_name, run_name, all_tags)
                self._made = True
            else:
                self.run_id, past = run_id, known_past(self.run_dir, self.tracking_uri, run_id)
            write_record(self.run_dir, self.tracking_uri, self.run_id)
            self._outbox = Outbox(self.run_dir, self.run_id, self.journal, past)
        except BaseException:
            if self._made:
                self._delete()
            self._lock.release()
            raise
        self.journal.on_append = self._outbox.add_row
        self._sending = Sending(self._outbox, self.run_dir, self.tracking_uri)
        if run_id is not None:
            try:
                self._append("status", status="RUNNING")
                self.set_tags(all_tags)
            except BaseException as error:
                self.give_up(error)
                raise

    @classmethod
    def resume(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        journal: Journal | None = None,
        driver: Owner | None = None,
    ) -> MlflowRun:
        """Continue the MLflow run of `run_dir`; `tracking_uri` is for a store that has moved.

        Raises:
            FileNotFoundError: `run_dir` has no record of a run, or its sqlite store is gone.
            ConnectionError, MissingRunError, BlockingIOError: as for the constructor.
        """
        record = read_record(run_dir)
        if record is None:
            raise FileNotFoundError(
                f"{pathlib.Path(run_dir) / MLFLOW_FILE} is missing: this run was not tracked with "
                "MLflow; start a new MLflow run for it with MlflowRun(run_dir, ...)"
            )
        uri = store_now(tracking_uri, record["tracking_uri"])
        store = sqlite_path(uri)
        if store is not None and not store.is_file():
            raise FileNotFoundError(
                f"{store}, the MLflow store of this run, is missing: give its new place with "
                "--tracking.uri=sqlite:///..., or train on with --tracking.enabled=false"
            )
        if absolute(uri) != record["tracking_uri"]:
            move_artifacts(uri, record["run_id"], record["tracking_uri"])
        return cls(
            run_dir,
            tracking_uri=uri,
            run_id=record["run_id"],
            tags=tags,
            journal=journal,
            driver=driver,
        )

    # --- logging ---------------------------------------------------------------------------------

    def log_params(self, params: Any) -> None:
        """Log a nested mapping or dataclass as `a.b.c`.

        MLflow never changes a parameter, so one that a resumed run has changed is logged as the tag
        `changed.<name>` instead; one that is changed back later keeps that tag, with what it is.
        """
        flat, known = flatten_params(params), self._outbox.params
        changed = {k: v for k, v in flat.items() if known.get(k, v) != v}
        self._append_values("params", {k: v for k, v in flat.items() if k not in known})
        if changed:
            log.warning(
                "MLflow keeps the first value of %s; the new ones are tags changed.<name>",
                ", ".join(changed),
            )
        tag_of = {k: f"{CHANGED}{k}"[:250] for k in flat}
        told = self._outbox.tags
        self.set_tags({t: flat[k] for k, t in tag_of.items() if k in changed or t in told})

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write numbers at `step` (environment steps) to the journal, and send them.

        Raises:
            TypeError: a value is no number.
        """
        self._check_open()
        self.journal.append({"env_steps": int(step), **metrics})

    def restored(self, step: int) -> None:
        """The journal was taken back to a checkpoint at `step`."""
        self._outbox.reread()
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
        self._append("artifact", path=relative_path(local, self.run_dir), folder=artifact_path)

    def log_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Copy the networks and counters of a checkpoint to the artifacts, without its replay.

        Raises:
            FileNotFoundError: the folder holds no checkpoint.
        """
        folder = pathlib.Path(path)
        files = [folder / name for name in CHECKPOINT_FILES if (folder / name).is_file()]
        for file in files or [folder / CHECKPOINT_FILES[0]]:
            self.log_artifact(file, f"checkpoints/{folder.name}")

    def _append_values(self, kind: str, values: Mapping[str, Any]) -> None:
        """One record, or several where MLflow's limits ask for it."""
        items = list(values.items())
        for start in range(0, len(items), BATCH_LIMITS[kind]):
            self._append(kind, values=dict(items[start : start + BATCH_LIMITS[kind]]))

    def _append(self, kind: str, **fields: Any) -> None:
        self._check_open()
        try:
            self._outbox.append(kind, **fields)
        except OSError as error:
            log.error("not logged to MLflow, %s cannot be written: %s", self.run_dir, error)

    def _check_open(self) -> None:
        if self._finished:
            raise RuntimeError(f"MLflow run {self.run_id} is finished: nothing can be logged to it")

    # --- sending ---------------------------------------------------------------------------------

    @property
    def num_queued(self) -> int:
        """Values and artifacts that wait to be sent."""
        return self._outbox.num_pending()

    def flush(self, budget_s: float = 60.0, patience_s: float = PATIENCE_S) -> bool:
        """Send what is queued now, for `budget_s` seconds at most; says whether nothing is left."""
        return self._sending.drain(budget_s, patience_s)

    def finish(
        self,
        status: str = "FINISHED",
        budget_s: float = FINISH_BUDGET_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Send what is queued and close the run; a second call does nothing.

        Args:
            status: FINISHED, FAILED or KILLED.
            budget_s: seconds at most; what is left stays in the run's folder.
            patience_s: of these, seconds in which nothing but errors comes back.
        """
        if status not in STATUSES:
            raise ValueError(f"status={status!r}: must be one of {', '.join(STATUSES)}")
        if self._finished:
            return
        ended = now_ms()
        answers = self.flush(budget_s, patience_s)
        self._append("status", status=status, ended=ended)
        self._finished = True
        # MLflow itself waits 20 s for a sqlite file into which other runs are writing
        self.flush(min(60.0 if answers else 10.0, budget_s), min(1.0, patience_s))
        self._sending.close(self._lock)
        if self.num_queued:
            log.warning(
                "MLflow run %s is incomplete: %d values and %d artifacts wait in %s; send them "
                "when the server is back with: pld-ray send %s",
                self.run_id,
                self._outbox.num_pending((METRICS, VALUES)),
                self._outbox.num_pending((ARTIFACTS,)),
                self.run_dir,
                shlex.quote(str(self.run_dir)),
            )

    def discard(self) -> None:
        """Delete the MLflow run, of which nothing is worth keeping, and forget it; a store that is
        away keeps it."""
        if self._finished:
            return
        self._finished = True
        try:
            self._delete()
        finally:
            self._sending.close(self._lock)

    def give_up(self, error: BaseException) -> None:
        """`discard` a run that was made for this; end one that was there, as the error says."""
        if self._made:
            self.discard()
        else:
            self.__exit__(type(error), error, None)

    def _delete(self) -> None:
        try:
            (self.run_dir / MLFLOW_FILE).unlink(missing_ok=True)
            delete_run(self.tracking_uri, self.run_id)
        except OSError as error:
            log.warning("MLflow run %s, which has not begun, stays: %s", self.run_id, error)

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
