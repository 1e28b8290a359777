"""Opening an MLflow store, and making or finding a run in it, with errors that say what to do."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from pld_ray.errors import UserError
from pld_ray.runs.layout import MLFLOW_FILE
from pld_ray.tracking.mlflow_record import ARTIFACTS, in_mlflow, sqlite_path
from pld_ray.tracking.mlflow_values import TAG_LENGTH, entity_key, shorten, truncate
from pld_ray.tracking.outbox import Ledger, Points
from pld_ray.tracking.quiet import quick_mlflow

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

log = logging.getLogger("pld_ray.tracking")

OPEN_TIMEOUT_S = 15
ASK_S, SAY_S = 1.0, 600.0
"""Between two times that a store which is away is asked, and that the log says so."""
ADVICE = (
    ": give another store with --tracking.uri=... (http://HOST:PORT of an `mlflow server`, or "
    "sqlite:///FILE), or train without MLflow with --tracking.enabled=false"
)
SENDING_ADVICE = (
    ": try again when it answers, or give its new place with --tracking_uri=... (http://HOST:PORT "
    "of an `mlflow server`, or sqlite:///FILE)"
)
NOT_ASKED = {"", "file", "sqlite", "mysql", "mssql", "postgresql"}
"""Schemes of stores that no server answers for."""
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",  # else MLflow's pages are for chat bots
    "mlflow.experiment.primaryMetric.name": "eval/residual_success",
    "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
}
REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE"}
"""MLflow error codes that asking again cannot help; everything else counts as an outage."""
LOCKED_OUT = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
NOT_THERE = {"NOT_FOUND", "ENDPOINT_NOT_FOUND"}
"""What a server answers that is none of MLflow's, or not at this path."""


class MissingRunError(UserError, ValueError):
    """The run or experiment to log to was deleted or never was; the message says what to do."""


class RefusedError(ConnectionError):
    """A server answers, and what it says is no outage."""


@contextlib.contextmanager
def opened_store(tracking_uri: str, advice: str = ADVICE) -> Iterator[MlflowClient]:
    """A client, with requests that fail within seconds.

    Args:
        tracking_uri: MLflow's.
        advice: what the user can do, appended to the error.

    Raises:
        ConnectionError: what is asked of it fails; `MissingRunError` passes.
        RefusedError: (a ConnectionError) the server's answer says so.
    """
    try:
        with quick_mlflow(OPEN_TIMEOUT_S), sqlite_lock(tracking_uri):
            from mlflow.tracking import MlflowClient  # takes 5 s: not at this module's import

            yield MlflowClient(tracking_uri, tracking_uri)
    except MissingRunError:
        raise
    except Exception as error:  # whatever store, driver or HTTP stack lies behind the URI
        kind = RefusedError if is_refusal(tracking_uri, error) else ConnectionError
        raise kind(f"MLflow at {tracking_uri} cannot be used ({shorten(error)}){advice}") from None


def is_refusal(tracking_uri: str, error: Exception) -> bool:
    """Whether a server has answered that which no waiting mends; a file may just be locked."""
    code = getattr(error, "error_code", None)
    return sqlite_path(tracking_uri) is None and code in REFUSALS | LOCKED_OUT | NOT_THERE


@contextlib.contextmanager
def sqlite_lock(tracking_uri: str) -> Iterator[None]:
    """One process at a time: MLflow makes the tables of a new sqlite file without a lock."""
    path = sqlite_path(tracking_uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def retried[T](
    ask: Callable[[], T], wait_s: float, tell: Callable[[str], None] = lambda text: None
) -> T:
    """The answer of a store that may be away at the moment.

    Whoever stops the process need not ask this: it ends a trial that waits here as it ends any.

    Args:
        ask: what is asked.
        wait_s: seconds to wait for it.
        tell: is given what is waited for, and an empty text when that is over.

    Raises:
        ConnectionError: it did not answer within `wait_s` seconds, or refuses.
    """
    began, said = time.monotonic(), -math.inf
    while True:
        try:
            answer = ask()
        except ConnectionError as error:
            now = time.monotonic()
            if now >= began + wait_s or isinstance(error, RefusedError):
                raise
            if now >= said + SAY_S:
                said = now
                tell(f"waiting for its MLflow store: {error}")
                log.warning("waiting for it, %.0f of %.0f s: %s", now - began, wait_s, error)
            time.sleep(ASK_S)
        else:
            if said >= began:
                tell("")
            return answer


def create_run(
    tracking_uri: str,
    experiment_name: str,
    run_name: str | None,
    tags: Mapping[str, str],
) -> str:
    """Make a run, and its experiment if there is none; the run's id.

    Raises:
        ConnectionError: the store cannot be used.
        MissingRunError: the experiment was deleted.
    """
    with opened_store(tracking_uri) as client:
        experiment = get_or_create_experiment(client, tracking_uri, experiment_name)
        run = client.create_run(
            experiment.experiment_id, run_name=run_name, tags=checked_tags(tags)
        )
        return run.info.run_id


def delete_run(tracking_uri: str, run_id: str) -> None:
    """Put a run into MLflow's bin, as one that has ended.

    Raises:
        ConnectionError: the store cannot be used.
    """
    with opened_store(tracking_uri, advice="") as client:
        client.set_terminated(run_id, "KILLED")
        client.delete_run(run_id)


def check_tracking(tracking_uri: str, experiment_name: str) -> None:
    """See that a server answers, and that a run may be made there, before one is; a file or a
    database is not opened, for MLflow would make its tables.

    Raises:
        ConnectionError: it cannot be used.
        MissingRunError: the experiment was deleted.
    """
    if urllib.parse.urlsplit(tracking_uri).scheme.partition("+")[0] in NOT_ASKED:
        return
    with opened_store(tracking_uri) as client:
        if experiment := client.get_experiment_by_name(experiment_name):
            check_active(experiment, tracking_uri)


def check_run(tracking_uri: str, run_id: str, advice: str = ADVICE) -> None:
    """See that a run can be logged to.

    Args:
        tracking_uri, run_id: where.
        advice: see `opened_store`.

    Raises:
        ConnectionError: the store cannot be used.
        MissingRunError: it has no such run, or it was deleted.
    """
    with opened_store(tracking_uri, advice) as client:
        lifecycle = run_lifecycle(client, run_id)
        if lifecycle != "active":
            raise MissingRunError(
                f"MLflow run {run_id} is {lifecycle} at {tracking_uri}: restore it with "
                f"{restoring(client, tracking_uri, run_id)}, or delete {MLFLOW_FILE} in the run's "
                "folder to start a new MLflow run"
            )


def find_child(
    tracking_uri: str, experiment_name: str, parent_run_id: str, tags: Mapping[str, str]
) -> str | None:
    """The oldest run under `parent_run_id` that has all these tags; None if there is none.

    Raises:
        ConnectionError: the store cannot be used.
    """
    wanted = {"mlflow.parentRunId": parent_run_id, **tags}
    condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items())
    with opened_store(tracking_uri) as client:
        experiment = client.get_experiment_by_name(experiment_name)
        if experiment is None:
            return None
        found = client.search_runs(
            [experiment.experiment_id], condition, order_by=["attributes.start_time ASC"]
        )
        return found[0].info.run_id if found else None


def logged_before(tracking_uri: str, run_id: str) -> tuple[Points, dict[str, str]]:
    """The points and the parameters that a run holds already, asked of the server.

    Raises:
        ConnectionError: the store cannot be used.
    """
    ledger = Ledger()
    with opened_store(tracking_uri) as client:
        data = client.get_run(run_id).data
        for key in data.metrics:
            for point in client.get_metric_history(run_id, key):
                ledger.note(key, point.step)
    return ledger.points, dict(data.params)


def run_lifecycle(client: MlflowClient, run_id: str) -> str:
    """`active`, `deleted` or `missing`."""
    try:
        return client.get_run(run_id).info.lifecycle_stage
    except Exception as error:
        if getattr(error, "error_code", None) not in REFUSALS:
            raise
        return "missing"


def restoring(client: MlflowClient, tracking_uri: str, run_id: str) -> str:
    """The command that brings a deleted run back: a deleted experiment takes its runs along."""
    command = f"runs restore --run-id {run_id}"
    with contextlib.suppress(Exception):  # there is no such run
        experiment = client.get_experiment(client.get_run(run_id).info.experiment_id)
        if experiment.lifecycle_stage == "deleted":
            command = f"experiments restore -x {experiment.experiment_id}"
    return in_mlflow(tracking_uri, command)


def get_or_create_experiment(client: MlflowClient, tracking_uri: str, name: str) -> Experiment:
    """The experiment; artifacts of a sqlite store lie beside its file, in `mlartifacts/`.

    Raises:
        MissingRunError: it was deleted.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        store = sqlite_path(tracking_uri)
        artifacts = (store.parent / ARTIFACTS).as_uri() if store else None
        try:
            client.create_experiment(name, artifact_location=artifacts, tags=EXPERIMENT_TAGS)
        except Exception as error:
            if getattr(error, "error_code", None) != "RESOURCE_ALREADY_EXISTS":
                raise  # anything but another run that made it at the same moment
        experiment = client.get_experiment_by_name(name)
    check_active(experiment, tracking_uri)
    return experiment


def check_active(experiment: Experiment, tracking_uri: str) -> None:
    """Refuse a deleted experiment with MissingRunError."""
    if experiment.lifecycle_stage == "deleted":
        restore = f"experiments restore -x {experiment.experiment_id}"
        raise MissingRunError(
            f"MLflow experiment {experiment.name!r} at {tracking_uri} was deleted: restore it with "
            f"{in_mlflow(tracking_uri, restore)}, or choose another name "
            "with --tracking.experiment=..."
        )


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags in the form, and within the limits, that MLflow accepts."""
    return {entity_key(k): truncate(str(v), TAG_LENGTH) for k, v in tags.items()}
