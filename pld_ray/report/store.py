"""Reading runs from an MLflow store, with MLflow's client."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from pld_ray.config import ConfigError
from pld_ray.report.runs import HELD_SUCCESS, HISTORIES, LATEST, PARENT_TAG, WALL_S, Run
from pld_ray.report.series import Series
from pld_ray.tracking.mlflow_record import CHANGED, check_sqlite
from pld_ray.tracking.mlflow_store import restoring

TIMEOUT_S = 10
REQUESTS_AT_ONCE = 8
PAGE_RUNS = 1000
NO_SUCH_RUN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def load_runs(tracking_uri: str, run_ids: Sequence[str]) -> list[tuple[Run, list[Run]]]:
    """Runs, each with the runs below it in the order of their start; deleted ones are left out.

    Raises:
        ConfigError: the store cannot be read, or one of the runs is not there or was deleted.
    """
    check_sqlite(tracking_uri)
    with _readable(tracking_uri):
        from mlflow.tracking import MlflowClient

        from pld_ray.tracking.quiet import quick_mlflow

        with quick_mlflow(TIMEOUT_S), ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            client = MlflowClient(tracking_uri, tracking_uri)
            families = list(pool.map(lambda run_id: _family(client, run_id), run_ids))
            found = {run.info.run_id: run for family in families for run in family}
            wanted = [
                (run_id, key)
                for run_id, run in found.items()
                for key in HISTORIES
                if key in run.data.metrics
            ]
            histories = pool.map(lambda which: _history(client, *which), wanted)
            points: dict[str, dict[str, list[Any]]] = {run_id: {} for run_id in found}
            for (run_id, key), history in zip(wanted, histories, strict=True):
                points[run_id][key] = history
    runs = {run_id: _run(run, points[run_id]) for run_id, run in found.items()}
    lists = [[runs[run.info.run_id] for run in family] for family in families]
    return [(first, rest) for first, *rest in lists]


@contextlib.contextmanager
def _readable(tracking_uri: str) -> Iterator[None]:
    """Whatever driver or HTTP stack lies behind the URI: what it says becomes one sentence."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        advice = "start the server, or give another store with --tracking_uri=..."
        if getattr(error, "get_http_status_code", int)() in (401, 403):
            advice = (
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a login that may read"
            )
        raise ConfigError(
            f"MLflow at {tracking_uri} cannot be read ({reason}): {advice}"
        ) from error


def _family(client: Any, run_id: str) -> list[Any]:
    """A run and its children; runs of training have none, so that they are not asked for."""
    from mlflow.exceptions import MlflowException

    where = client.tracking_uri
    try:
        root = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in NO_SUCH_RUN:
            raise
        raise ConfigError(
            f"{where} has no MLflow run {run_id}: check the id, or give the right store with "
            "--tracking_uri=..."
        ) from error
    if root.info.lifecycle_stage != "active":
        raise ConfigError(
            f"MLflow run {run_id} at {where} was deleted: restore it with "
            f"{restoring(client, where, run_id)}"
        )
    found, token = [root], None
    while root.data.tags.get("pld_ray.kind") not in ("train", "trial"):
        page = client.search_runs(
            [root.info.experiment_id],
            f"tags.`{PARENT_TAG}` = '{run_id}'",
            max_results=PAGE_RUNS,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            page_token=token,
        )
        found += page
        if not (token := page.token):
            break
    return found


def _history(client: Any, run_id: str, key: str) -> list[Any]:
    """Every point of a metric but NaN, in the order in which they were logged."""
    points = sorted(client.get_metric_history(run_id, key), key=lambda m: m.timestamp)
    return [m for m in points if m.value == m.value]


class _Training:
    """When a run was at which step: it may have gone on after a point, or back behind it.

    Args:
        rows: points of a metric that each row of the training has, in the order of logging.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self._times = [row.timestamp for row in rows]
        self._least = [*accumulate((row.step for row in reversed(rows)), min)][::-1]

    def least_step_after(self, point: Any) -> float:
        """Of the training after a point was logged; infinite where there was none."""
        later = bisect_right(self._times, point.timestamp)
        return self._least[later] if later < len(self._least) else math.inf

    def keeps(self, point: Any) -> bool:
        """Whether training has not gone back behind a point, nor on from it if it is of an end."""
        step = self.least_step_after(point)
        return step == math.inf if point.key == HELD_SUCCESS else step >= point.step


def _run(run: Any, points: dict[str, list[Any]]) -> Run:
    info, data = run.info, run.data
    training = _Training(points.get(WALL_S, []))
    kept = {key: [(m.step, m.value) for m in points[key] if training.keeps(m)] for key in points}
    metrics = {key: Series.of(found) for key, found in kept.items() if found}
    newest = [m for m in data.to_proto().metrics if m.value == m.value and training.keeps(m)]
    latest = {m.key: m.value for m in newest if m.key in LATEST}
    # of a run that goes on with other settings MLflow keeps the first, see `MlflowRun.log_params`
    changed = {k.removeprefix(CHANGED): v for k, v in data.tags.items() if k.startswith(CHANGED)}
    return Run(
        info.run_id,
        info.run_name or "",
        info.status,
        info.start_time,
        info.artifact_uri or "",
        {**data.params, **changed},
        dict(data.tags),
        metrics,
        latest,
    )
