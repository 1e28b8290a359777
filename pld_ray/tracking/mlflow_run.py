"""One MLflow run of one training run: created once, resumed after, and never in training's way."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pld_ray.tracking.mlflow_record import (
    RECORD_FILE,
    read_record,
    sqlite_path,
    sqlite_uri,
    write_record,
)
from pld_ray.tracking.mlflow_values import (
    TAG_LENGTH,
    entity_key,
    finite_metrics,
    flatten_params,
    truncate,
)
from pld_ray.tracking.outbox import Outbox, Refused, shorten
from pld_ray.tracking.quiet import http_limits, quiet_mlflow

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

log = logging.getLogger("pld_ray.tracking")

STATUSES = ("FINISHED", "FAILED", "KILLED")
START_TIMEOUT_S = 5
CALL_TIMEOUT_S = 5
ARTIFACT_TIMEOUT_S = 60
FINISH_BUDGET_S = 60.0
REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE"}
"""MLflow error codes that sending again cannot help; everything else counts as an outage."""


class MissingRunError(ValueError):
    """The run or experiment to log to was deleted or never was; the message says what to do."""


@dataclass(frozen=True)
class Artifact:
    """A local file or folder on its way to the run's artifacts."""

    path: pathlib.Path
    folder: str | None


class MlflowRun:
    """Logs one run through `MlflowClient`; no global MLflow state is read or changed.

    The run's id is kept in `<run_dir>/mlflow_run.json`; `MlflowRun.resume` continues from it.
    Calls block for a few seconds at most. While the server is away, metrics, parameters and
    artifacts are queued (`queue_size` values) and sent when it is back; the log says what was lost.
    As a context manager it finishes as FINISHED, FAILED (exception) or KILLED (interrupt).

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
        queue_size: values kept while the server is away.

    Raises:
        ConnectionError: the store cannot be opened or does not answer within seconds.
        MissingRunError: (a ValueError) `run_id` is not there, or the experiment was deleted.
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
        queue_size: int = 50_000,
    ) -> None:
        self.run_dir = pathlib.Path(run_dir).resolve()
        self.tracking_uri = tracking_uri or sqlite_uri(store_dir or self.run_dir)
        self._finished = False
        all_tags = dict(tags or {})
        if parent_run_id is not None:
            all_tags["mlflow.parentRunId"] = parent_run_id
        self._client, self.run_id = self._open(experiment_name, run_name, run_id, all_tags)
        write_record(self.run_dir, self.tracking_uri, self.run_id)
        from mlflow.entities import Metric, Param, RunTag

        limits = {Metric: 1000, Param: 100, RunTag: 100}
        where = f"MLflow at {self.tracking_uri}"
        self._values = Outbox(self._send_values, where, limits, queue_size)
        # Apart, so that artifacts which cannot be stored do not hold up the metrics behind them.
        self._artifacts = Outbox(self._send_artifact, f"{where}, artifacts,", {}, queue_size)

    @classmethod
    def resume(
        cls,
        run_dir: str | os.PathLike[str],
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> MlflowRun:
        """Continue the MLflow run of `run_dir`; `tracking_uri` is for a store that has moved.

        Raises:
            FileNotFoundError: `run_dir` has no record of a run, or its sqlite store is gone.
            ConnectionError, MissingRunError: as for the constructor.
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
        return cls(run_dir, tracking_uri=uri, run_id=record["run_id"], tags=tags)

    # --- opening ---------------------------------------------------------------------------------

    def _open(
        self, experiment_name: str, run_name: str | None, run_id: str | None, tags: dict[str, str]
    ) -> tuple[MlflowClient, str]:
        try:
            with http_limits(START_TIMEOUT_S):
                from mlflow.tracking import MlflowClient  # takes 5 s: not at this module's import

                with quiet_mlflow():
                    client = self._client = MlflowClient(self.tracking_uri, self.tracking_uri)
                    if run_id is None:
                        return client, self._create_run(experiment_name, run_name, tags)
                    return client, self._continue_run(run_id, tags)
        except MissingRunError:
            raise
        except Exception as error:  # whatever store, driver or HTTP stack lies behind the URI
            raise ConnectionError(
                f"MLflow at {self.tracking_uri} cannot be used ({shorten(error)}): give another "
                "store with --tracking.uri=..., or train without MLflow with "
                "--tracking.enabled=false"
            ) from None

    def _create_run(self, experiment_name: str, run_name: str | None, tags: dict[str, str]) -> str:
        experiment = self._get_or_create_experiment(experiment_name)
        run = self._client.create_run(
            experiment.experiment_id,
            run_name=run_name,
            tags={entity_key(k): truncate(str(v), TAG_LENGTH) for k, v in tags.items()},
        )
        return run.info.run_id

    def _get_or_create_experiment(self, name: str) -> Experiment:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            store = sqlite_path(self.tracking_uri)
            artifacts = (store.parent / "mlartifacts").as_uri() if store else None
            try:
                self._client.create_experiment(name, artifact_location=artifacts)
            except Exception as error:
                if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                    raise  # anything but another run that made it at the same moment
            experiment = self._client.get_experiment_by_name(name)
        if experiment.lifecycle_stage == "deleted":
            raise MissingRunError(
                f"MLflow experiment {name!r} at {self.tracking_uri} was deleted: restore it with "
                f"`mlflow experiments restore -x {experiment.experiment_id}`, or choose another "
                "name with --tracking.experiment=..."
            )
        return experiment

    def _continue_run(self, run_id: str, tags: dict[str, str]) -> str:
        try:
            lifecycle = self._client.get_run(run_id).info.lifecycle_stage
        except Exception as error:
            if getattr(error, "error_code", None) not in REFUSALS:
                raise
            lifecycle = "missing"
        if lifecycle != "active":
            raise MissingRunError(
                f"MLflow run {run_id} is {lifecycle} at {self.tracking_uri}: restore it with "
                f"`mlflow runs restore --run-id {run_id}`, or delete "
                f"{self.run_dir / RECORD_FILE} to start a new MLflow run"
            )
        self._client.update_run(run_id, status="RUNNING")
        for key, value in tags.items():
            self._client.set_tag(run_id, entity_key(key), truncate(str(value), TAG_LENGTH))
        return run_id

    # --- logging ---------------------------------------------------------------------------------

    def log_params(self, params: Any) -> None:
        """Log a nested mapping or dataclass as `a.b.c`.

        MLflow never changes a parameter, so one that a resumed run has changed is logged as the tag
        `changed.<name>` instead.
        """
        from mlflow.entities import Param, RunTag

        flat = flatten_params(params)
        known = self._known_params()
        new = [Param(k, v) for k, v in flat.items() if k not in known]
        changed = {k: v for k, v in flat.items() if known.get(k, v) != v}
        if changed:
            log.warning(
                "MLflow keeps the first value of %s; the new ones are tags changed.<name>",
                ", ".join(changed),
            )
        self._values.put(
            [*new, *(RunTag(f"changed.{k}"[:250], v[:TAG_LENGTH]) for k, v in changed.items())]
        )

    def _known_params(self) -> dict[str, str]:
        try:
            with http_limits(CALL_TIMEOUT_S):
                return dict(self._client.get_run(self.run_id).data.params)
        except Exception:  # away: the queue finds out, and reports it
            return {}

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log numbers at `step` (environment steps) with one request.

        None is skipped; NaN and infinity are not logged but counted in `tracking/non_finite`.

        Raises:
            TypeError: a value is no number.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._values.put([Metric(k, v, now, int(step)) for k, v in finite_metrics(metrics).items()])

    def log_artifact(self, path: str | os.PathLike[str], artifact_path: str | None = None) -> None:
        """Copy a file, or a folder with all it holds, to the run's artifacts.

        Args:
            path: local file or folder.
            artifact_path: folder within the artifacts; None is their root.

        Raises:
            FileNotFoundError: `path` does not exist.
        """
        local = pathlib.Path(path).resolve()
        if not local.exists():
            raise FileNotFoundError(f"cannot log {local} to MLflow: no such file or folder")
        self._artifacts.put([Artifact(local, artifact_path)])

    def set_tag(self, key: str, value: str) -> None:
        """Set one tag of the run."""
        from mlflow.entities import RunTag

        self._values.put([RunTag(entity_key(key), truncate(str(value), TAG_LENGTH))])

    # --- sending ---------------------------------------------------------------------------------

    def _send_values(self, items: Sequence[Any]) -> None:
        """Send items of one type. A repeated send is harmless: MLflow ignores equal values."""
        field = {"Metric": "metrics", "Param": "params", "RunTag": "tags"}[type(items[0]).__name__]
        with http_limits(CALL_TIMEOUT_S), refusals():
            self._client.log_batch(self.run_id, synchronous=True, **{field: items})

    def _send_artifact(self, items: Sequence[Artifact]) -> None:
        (artifact,) = items
        if not artifact.path.exists():
            raise Refused(f"{artifact.path} was deleted before it could be sent")
        with http_limits(ARTIFACT_TIMEOUT_S), quiet_mlflow(), refusals():
            if artifact.path.is_dir():
                folder = "/".join(filter(None, [artifact.folder, artifact.path.name]))
                self._client.log_artifacts(self.run_id, str(artifact.path), folder)
            else:
                self._client.log_artifact(self.run_id, str(artifact.path), artifact.folder)

    @property
    def num_queued(self) -> int:
        """Values and artifacts that wait for the server."""
        return len(self._values) + len(self._artifacts)

    def flush(self) -> bool:
        """Try now, outage or not, to send what is queued; says whether nothing is left."""
        values, artifacts = self._values.flush(force=True), self._artifacts.flush(force=True)
        return values and artifacts

    def finish(self, status: str = "FINISHED") -> None:
        """Send what is queued and close the run; a second call does nothing.

        Args:
            status: FINISHED, FAILED or KILLED.
        """
        if status not in STATUSES:
            raise ValueError(f"status={status!r}: must be one of {', '.join(STATUSES)}")
        if self._finished:
            return
        self._finished = True
        boxes = (self._values, self._artifacts)
        for box in boxes:
            box.flush(force=True, budget_s=FINISH_BUDGET_S)
        try:
            with http_limits(CALL_TIMEOUT_S), quiet_mlflow():
                self._client.set_terminated(self.run_id, status)
        except Exception as error:
            log.warning("MLflow run %s could not be closed: %s", self.run_id, shorten(error))
        if self.num_queued:
            log.warning(
                "MLflow run %s is incomplete (%s); every metric is in %s",
                self.run_id,
                ", ".join(filter(None, [box.contents() for box in boxes])),
                self.run_dir / "metrics.jsonl",
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


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn an answer of MLflow that will never change into `Refused`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code in REFUSALS:
            raise Refused(shorten(error)) from error
        raise
