"""Reading runs from an MLflow server with the standard library.

Importing MLflow's client takes seconds, and it asks once for each run and metric; here it is once
for each metric of up to a hundred runs. What needs more than a login or a token (certificates of
one's own, signed requests, a server without that address) is left to the client.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pathlib
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pld_ray.report.runs import HISTORIES, LATEST, PARENT_TAG, Run, Series

API = "/api/2.0/mlflow"
BULK = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
RUNS_AT_ONCE = 100
POINTS_AT_ONCE = 25_000
"""MLflow's limits for one answer of `BULK`; it leaves out what is beyond them without a word."""
REQUESTS_AT_ONCE = 8
PAGE_RUNS = 1000
BEYOND_A_LOGIN = (
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
)
CREDENTIALS_FILE = "~/.mlflow/credentials"


class UnsupportedServerError(Exception):
    """The server does not have an address that is needed; MLflow's client knows others."""


class RunNotFoundError(Exception):
    """The server has no run of this id, or it was deleted."""

    def __init__(self, run_id: str, lifecycle: str) -> None:
        super().__init__(run_id, lifecycle)
        self.run_id, self.lifecycle = run_id, lifecycle


def can_read(tracking_uri: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the address is a server that is spoken to with a login, a token or nothing."""
    return (
        urllib.parse.urlsplit(tracking_uri).scheme in ("http", "https")
        and not any(environment.get(name) for name in BEYOND_A_LOGIN)
        and not pathlib.Path(CREDENTIALS_FILE).expanduser().exists()
    )


class Server:
    """One MLflow server.

    Args:
        uri: `http(s)://[USER:PASSWORD@]HOST[:PORT][/PREFIX]`.
        timeout_s: of each request.
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(uri)
        self._root = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if authorization := _authorization(parts):
            self._headers["Authorization"] = authorization

    def load(self, run_ids: Sequence[str]) -> list[tuple[Run, list[Run]]]:
        """Runs, each with the runs below it in the order of their start.

        Raises:
            RunNotFoundError: one is not there, or was deleted.
            UnsupportedServerError: the server knows no histories of several runs.
            OSError: it does not answer, or refuses; `urllib.error.HTTPError` has the status.
        """
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            families = list(pool.map(self._family, run_ids))
        found = {run["info"]["run_id"]: run for family in families for run in family}
        histories = self._histories(found.values())
        runs = {run_id: _run(run, histories[run_id]) for run_id, run in found.items()}
        lists = [[runs[run["info"]["run_id"]] for run in family] for family in families]
        return [(first, rest) for first, *rest in lists]

    def _family(self, run_id: str) -> list[dict[str, Any]]:
        """A run and its children; runs of training have none, so that they are not asked for."""
        try:
            root = self._ask(f"{API}/runs/get", {"run_id": run_id})["run"]
        except urllib.error.HTTPError as error:
            raise RunNotFoundError(run_id, "missing") if _is_refusal(error) else error from None
        if root["info"]["lifecycle_stage"] != "active":
            raise RunNotFoundError(run_id, "deleted")
        tags = {tag["key"]: tag.get("value") for tag in root["data"].get("tags", [])}
        alone = tags.get("pld_ray.kind") in ("train", "trial")
        return [root] if alone else [root, *self._children(root)]

    def _children(self, root: Mapping[str, Any]) -> list[dict[str, Any]]:
        info = root["info"]
        query = {
            "experiment_ids": [info["experiment_id"]],
            "filter": f"tags.`{PARENT_TAG}` = '{info['run_id']}'",
            "max_results": PAGE_RUNS,
            "order_by": ["attributes.start_time ASC", "attributes.run_id ASC"],
        }
        children: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            page = self._ask(f"{API}/runs/search", body=query | token)
            children += page.get("runs", [])
            if not page.get("next_page_token"):
                return children
            token = {"page_token": page["next_page_token"]}

    def _histories(self, runs: Iterable[Mapping[str, Any]]) -> Mapping[str, dict[str, Series]]:
        """Run id -> metric -> values, for the metrics that a report reads in full."""
        holders: dict[str, list[str]] = {key: [] for key in HISTORIES}
        for run in runs:
            for metric in run["data"].get("metrics", []):
                if metric["key"] in holders:
                    holders[metric["key"]].append(run["info"]["run_id"])
        batches = [
            (key, ids[start : start + RUNS_AT_ONCE])
            for key, ids in holders.items()
            for start in range(0, len(ids), RUNS_AT_ONCE)
        ]
        metrics: defaultdict[str, dict[str, Series]] = defaultdict(dict)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            answers = pool.map(lambda batch: self._history(*batch), batches)
            for (key, _), points in zip(batches, answers, strict=True):
                for run_id, series in _by_run(points).items():
                    metrics[run_id][key] = series
        return metrics

    def _history(self, key: str, run_ids: list[str]) -> list[dict[str, Any]]:
        """Every point of a metric of these runs."""
        if len(run_ids) > 1:
            query = {"metric_key": key, "run_id": run_ids, "max_results": POINTS_AT_ONCE}
            try:
                points: list[dict[str, Any]] = self._ask(BULK, query).get("metrics", [])
            except urllib.error.HTTPError as error:
                if error.code in (404, 405):
                    raise UnsupportedServerError from None
                raise
            if len(points) < POINTS_AT_ONCE:
                return points
            half = len(run_ids) // 2
            return self._history(key, run_ids[:half]) + self._history(key, run_ids[half:])
        points = []
        token: dict[str, str] = {}
        while True:
            one = {"run_id": run_ids[0], "metric_key": key, "max_results": POINTS_AT_ONCE}
            page = self._ask(f"{API}/metrics/get-history", one | token)
            points += [{**point, "run_id": run_ids[0]} for point in page.get("metrics", [])]
            if not page.get("next_page_token"):
                return points
            token = {"page_token": page["next_page_token"]}

    def _ask(
        self, path: str, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> dict[str, Any]:
        address = self._root + path
        if query:
            address += "?" + urllib.parse.urlencode(query, doseq=True)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, self._headers)
        with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
            content = json.load(answer)
        if not isinstance(content, dict):
            raise ValueError(f"{path} was answered with something else than a JSON object")
        return content


def _authorization(parts: urllib.parse.SplitResult) -> str:
    """As MLflow's client: the environment's login, else its token; the address names its own."""
    user, password = parts.username, parts.password
    if user is None:
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD")
    else:
        user, password = urllib.parse.unquote(user), urllib.parse.unquote(password or "")
    if user and password:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return f"Bearer {token}" if token else ""


def _is_refusal(error: urllib.error.HTTPError) -> bool:
    """Whether the server knows the question, and no such run."""
    if error.code not in (400, 404):
        return False
    try:
        code = json.load(error).get("error_code")
    except (ValueError, AttributeError):
        return False
    return code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def _by_run(points: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Points taken apart by run; NaN is left out."""
    found: defaultdict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for point in points:
        value = float(point["value"])
        if value == value:
            place = int(point.get("step", 0)), int(point["timestamp"])
            found[point["run_id"]].append((*place, value))
    return {
        run_id: Series.of([(step, value) for step, _, value in sorted(values)])
        for run_id, values in found.items()
    }


def _run(run: Mapping[str, Any], metrics: dict[str, Series]) -> Run:
    info, data = run["info"], run["data"]
    params, tags = (
        {str(entry["key"]): str(entry.get("value", "")) for entry in data.get(kind, [])}
        for kind in ("params", "tags")
    )
    newest = {entry["key"]: float(entry["value"]) for entry in data.get("metrics", [])}
    start, end = (int(info[key]) if info.get(key) else None for key in ("start_time", "end_time"))
    return Run(
        info["run_id"],
        info.get("run_name", ""),
        info["status"],
        start,
        end,
        info.get("artifact_uri", ""),
        params,
        tags,
        metrics,
        {key: value for key in LATEST if (value := newest.get(key, math.nan)) == value},
    )
