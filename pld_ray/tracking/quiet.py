"""MLflow's habits held in check while we use it: log lines, printed links, minutes of retries."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

LOGGERS = ("mlflow.store", "mlflow.tracking", "mlflow.pyfunc", "alembic")
_lock = threading.Lock()
_timeouts: list[tuple[object, int]] = []
_owned: set[str] = set()
_levels: dict[str, int] = {}


@contextlib.contextmanager
def quick_mlflow(timeout_s: int) -> Iterator[None]:
    """One attempt of `timeout_s` seconds per HTTP request, and no INFO lines of MLflow or alembic.

    MLflow reads its limits from the environment at each request and offers no other way; a value
    that the user has set stays. Holders may overlap, in any thread: the youngest one's timeout
    holds, and the last to leave restores environment and log levels.
    """
    holder = (object(), timeout_s)
    with _lock:
        _timeouts.append(holder)
        _apply()
    try:
        yield
    finally:
        with _lock:
            _timeouts.remove(holder)
            _apply()


def _apply() -> None:
    wanted: dict[str, str] = {}
    if _timeouts:
        wanted = {
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_timeouts[-1][1]),
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        }
    for name, value in wanted.items():
        if name not in os.environ:
            _owned.add(name)
        if name in _owned:
            os.environ[name] = value
    for name in _owned - wanted.keys():
        os.environ.pop(name, None)
        _owned.discard(name)
    if wanted and not _levels:
        for name in LOGGERS:
            _levels[name] = logging.getLogger(name).level
            logging.getLogger(name).setLevel(logging.WARNING)
    if not wanted:
        for name, level in _levels.items():
            logging.getLogger(name).setLevel(level)
        _levels.clear()
