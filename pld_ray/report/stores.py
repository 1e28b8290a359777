"""Reading runs from an MLflow store.

A sqlite store and a server are read with the standard library: importing MLflow's client takes
seconds. Every other store, a sqlite file whose tables are laid out differently and a server that
wants more than a login go through the client. All give the same runs.
"""

from __future__ import annotations

import abc
import math
import pathlib
import sqlite3
import urllib.error
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pld_ray.config import ConfigError
from pld_ray.report import http_store
from pld_ray.report.runs import HISTORIES, LATEST, PARENT_TAG, Run, Series
from pld_ray.tracking.mlflow_record import sqlite_path

TIMEOUT_S = 10
SQL_VARIABLES = 500
REQUESTS_AT_ONCE = 8


class Store(abc.ABC):
    """Where tracked runs are read from."""

    @abc.abstractmethod
    def load(self, run_id: str) -> tuple[Run, list[Run]]:
        """A run, and the runs below it in the order of their start; deleted ones are left out.

        Raises:
            ConfigError: the store cannot be read, or the run is not there.
        """

    def load_all(self, run_ids: Sequence[str]) -> list[tuple[Run, list[Run]]]:
        """`load` of each; a store with round trips asks for all of them at once."""
        return [self.load(run_id) for run_id in run_ids]


def open_store(tracking_uri: str) -> Store:
    """The fastest reader of a tracking URI.

    Raises:
        ConfigError: a sqlite file is missing or is no MLflow store.
    """
    path = sqlite_path(tracking_uri)
    if path is None:
        is_plain = http_store.can_read(tracking_uri)
        return HttpStore(tracking_uri) if is_plain else ClientStore(tracking_uri)
    if not path.is_file():
        raise ConfigError(
            f"{path}, the MLflow store, is missing: give its new place with "
            "--tracking_uri=sqlite:///..."
        )
    return SqliteStore(path) if has_known_tables(path) else ClientStore(tracking_uri)


def missing_run(run_id: str, where: str, lifecycle: str = "missing") -> ConfigError:
    """The error for a run that is not there, or was deleted."""
    if lifecycle == "deleted":
        return ConfigError(
            f"MLflow run {run_id} at {where} was deleted: restore it with "
            f"`mlflow runs restore --run-id {run_id}`"
        )
    return ConfigError(
        f"{where} has no MLflow run {run_id}: check the id, or give the right store with "
        "--tracking_uri=..."
    )


# --- sqlite ---------------------------------------------------------------------------------------

COLUMNS = {
    "runs": "run_uuid name status start_time end_time artifact_uri lifecycle_stage",
    "params": "run_uuid key value",
    "tags": "run_uuid key value",
    "metrics": "run_uuid key value step timestamp is_nan",
    "latest_metrics": "run_uuid key value is_nan",
}
"""What is read of MLflow's tables."""


def connect(path: pathlib.Path) -> sqlite3.Connection:
    """Open a sqlite file for reading only."""
    return sqlite3.connect(
        f"file:{urllib.parse.quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT_S
    )


def has_known_tables(path: pathlib.Path) -> bool:
    """Whether the file has MLflow's tables with the columns that are read.

    Raises:
        ConfigError: it is no sqlite file, or none of the tables is there.
    """
    try:
        with connect(path) as connection:
            found = {
                table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                for table in COLUMNS
            }
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read as an MLflow store: {error}") from error
    if not any(found.values()):
        raise ConfigError(f"{path} is no MLflow store: the table `runs` is missing")
    return all(set(columns.split()) <= found[table] for table, columns in COLUMNS.items())


class SqliteStore(Store):
    """Reads a sqlite store's tables."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def load(self, run_id: str) -> tuple[Run, list[Run]]:
        """See `Store.load`."""
        try:
            with connect(self.path) as connection:
                children = connection.execute(
                    "SELECT t.run_uuid FROM tags t JOIN runs r ON r.run_uuid = t.run_uuid "
                    "WHERE t.key = ? AND t.value = ? AND r.lifecycle_stage = 'active' "
                    "ORDER BY r.start_time, r.run_uuid",
                    (PARENT_TAG, run_id),
                ).fetchall()
                runs = self._read(connection, [run_id, *(row[0] for row in children)])
        except sqlite3.Error as error:
            raise ConfigError(f"{self.path} cannot be read: {error}; try again") from error
        return runs[0], runs[1:]

    def _read(self, connection: sqlite3.Connection, run_ids: list[str]) -> list[Run]:
        params, tags = (self._texts(connection, table, run_ids) for table in ("params", "tags"))
        metrics = self._histories(connection, run_ids)
        latest: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for run_id, key, value in self._values(connection, "latest_metrics", run_ids, LATEST):
            latest[run_id][key] = value
        rows = {row[0]: row for row in _select(connection, COLUMNS["runs"], "runs", run_ids)}
        runs = []
        for run_id in run_ids:
            if run_id not in rows or rows[run_id][6] != "active":
                state = "deleted" if run_id in rows else "missing"
                raise missing_run(run_id, str(self.path), state)
            _, name, status, start, end, artifacts, _ = rows[run_id]
            run_tags = tags[run_id]
            runs.append(
                Run(
                    run_id,
                    run_tags.get("mlflow.runName") or name or "",
                    status,
                    start,
                    end,
                    artifacts or "",
                    params[run_id],
                    run_tags,
                    metrics[run_id],
                    latest[run_id],
                )
            )
        return runs

    @staticmethod
    def _texts(
        connection: sqlite3.Connection, table: str, run_ids: list[str]
    ) -> defaultdict[str, dict[str, str]]:
        texts: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for run_id, key, value in _select(connection, COLUMNS[table], table, run_ids):
            texts[run_id][key] = value or ""
        return texts

    def _histories(
        self, connection: sqlite3.Connection, run_ids: list[str]
    ) -> defaultdict[str, dict[str, Series]]:
        points: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        rows = self._values(connection, "metrics", run_ids, HISTORIES, "step", "step, timestamp")
        for run_id, key, value, step in rows:
            points[run_id, key].append((step, value))
        metrics: defaultdict[str, dict[str, Series]] = defaultdict(dict)
        for (run_id, key), pairs in points.items():
            metrics[run_id][key] = Series.of(pairs)
        return metrics

    @staticmethod
    def _values(
        connection: sqlite3.Connection,
        table: str,
        run_ids: list[str],
        keys: tuple[str, ...],
        more_columns: str = "",
        order: str = "key",
    ) -> Iterator[tuple[Any, ...]]:
        """Numbers of some metrics: run, key, value and what else is asked for."""
        places = ", ".join("?" * len(keys))
        condition = f"AND is_nan = 0 AND key IN ({places}) ORDER BY {order}"
        return _select(
            connection, f"run_uuid key value {more_columns}", table, run_ids, condition, keys
        )


def _select(
    connection: sqlite3.Connection,
    columns: str,
    table: str,
    run_ids: list[str],
    condition: str = "",
    values: Iterable[str] = (),
) -> Iterator[tuple[Any, ...]]:
    """Rows of these runs, in as many statements as sqlite's limit on variables asks for."""
    for start in range(0, len(run_ids), SQL_VARIABLES):
        chunk = run_ids[start : start + SQL_VARIABLES]
        places = ", ".join("?" * len(chunk))
        yield from connection.execute(
            f"SELECT {', '.join(columns.split())} FROM {table} "
            f"WHERE run_uuid IN ({places}) {condition}",
            [*chunk, *values],
        )


# --- a server -------------------------------------------------------------------------------------


def unreadable(tracking_uri: str, error: Exception) -> ConfigError:
    """The error for a server or database that does not give what is asked for."""
    reason = str(error).strip().split("\n")[0][:200]
    advice = "start the server, or give another store with --tracking_uri=..."
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        advice = (
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to a login that may read"
        )
    return ConfigError(f"MLflow at {tracking_uri} cannot be read ({reason}): {advice}")


class HttpStore(Store):
    """Asks an `mlflow server`."""

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri

    def load(self, run_id: str) -> tuple[Run, list[Run]]:
        """See `Store.load`."""
        return self.load_all([run_id])[0]

    def load_all(self, run_ids: Sequence[str]) -> list[tuple[Run, list[Run]]]:
        """See `Store.load_all`."""
        try:
            return http_store.Server(self.tracking_uri, TIMEOUT_S).load(run_ids)
        except http_store.UnsupportedServerError:
            return ClientStore(self.tracking_uri).load_all(run_ids)
        except http_store.RunNotFoundError as error:
            raise missing_run(error.run_id, self.tracking_uri, error.lifecycle) from None
        except (OSError, ValueError, KeyError) as error:
            raise unreadable(self.tracking_uri, error) from error


# --- every other store ----------------------------------------------------------------------------


class ClientStore(Store):
    """Reads a store with MLflow's client."""

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri

    def load(self, run_id: str) -> tuple[Run, list[Run]]:
        """See `Store.load`."""
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        from pld_ray.tracking.quiet import mlflow_manners

        try:
            with mlflow_manners(TIMEOUT_S):
                client = MlflowClient(self.tracking_uri, self.tracking_uri)
                root = client.get_run(run_id)
                if root.info.lifecycle_stage != "active":
                    raise missing_run(run_id, self.tracking_uri, "deleted")
                found = [root, *self._children(client, root)]
                with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                    runs = list(pool.map(lambda run: self._read(client, run), found))
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise missing_run(run_id, self.tracking_uri) from error
            raise unreadable(self.tracking_uri, error) from error
        except ConfigError:
            raise
        except Exception as error:  # whatever driver or HTTP stack lies behind the URI
            raise unreadable(self.tracking_uri, error) from error
        return runs[0], runs[1:]

    @staticmethod
    def _children(client: Any, root: Any) -> list[Any]:
        children, token = [], None
        while True:
            page = client.search_runs(
                [root.info.experiment_id],
                f"tags.`{PARENT_TAG}` = '{root.info.run_id}'",
                max_results=1000,
                order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
                page_token=token,
            )
            children += page
            token = page.token
            if not token:
                return children

    @staticmethod
    def _read(client: Any, run: Any) -> Run:
        info, data = run.info, run.data
        metrics = {}
        for key in HISTORIES:
            if key in data.metrics:
                history = client.get_metric_history(info.run_id, key)
                history.sort(key=lambda m: (m.step, m.timestamp))
                pairs = [(m.step, m.value) for m in history if m.value == m.value]
                if pairs:
                    metrics[key] = Series.of(pairs)
        return Run(
            info.run_id,
            info.run_name or "",
            info.status,
            info.start_time,
            info.end_time,
            info.artifact_uri or "",
            dict(data.params),
            dict(data.tags),
            metrics,
            {
                key: value
                for key in LATEST
                if (value := data.metrics.get(key, math.nan)) == value  # not NaN
            },
        )
