"""From the records of an outbox to MLflow."""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pld_ray.tracking.mlflow_store import REFUSALS, run_lifecycle
from pld_ray.tracking.outbox import Record
from pld_ray.tracking.sender import shorten

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("pld_ray.tracking")


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
            raise RuntimeError(
                f"run {self.run_id} is {lifecycle}; `mlflow runs restore --run-id {self.run_id}` "
                "brings it back"
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
