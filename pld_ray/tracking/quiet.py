"""MLflow's habits held in check while one of its calls runs: log lines, links, long retries."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def http_limits(timeout_s: int) -> Iterator[None]:
    """Let MLflow give up after one attempt of `timeout_s` seconds instead of minutes of retries.

    MLflow reads these settings from the environment at each request and offers no other way. A
    value that the user has set stays.
    """
    with _environment(
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        MLFLOW_HTTP_REQUEST_TIMEOUT=str(timeout_s),
        MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true",
    ):
        yield


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Hold back INFO lines of MLflow and alembic (table creation, one line per migration)."""
    loggers = [logging.getLogger(name) for name in ("mlflow.store", "alembic", "mlflow.tracking")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables that are not set, and unset them afterwards."""
    added = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
