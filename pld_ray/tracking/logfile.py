"""The log of a run: everything in its file, only warnings on the console."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import sys

from pld_ray.errors import user_error
from pld_ray.runs.layout import LOG_FILE

LOGGER = "pld_ray"


class _RunHandler(logging.FileHandler):
    """A full disk ends the run, which says so; that it takes no line either is not worth a word."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _ConsoleHandler(logging.StreamHandler):
    """Writes to whatever `sys.stderr` is now, so that a progress display can print above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """A user's mistake is told in one sentence by `cli.main`; its traceback is for the file."""
        error = record.exc_info[1] if record.exc_info else None
        return user_error(error) is None and super().filter(record)

    @property
    def stream(self):  # type: ignore[no-untyped-def,override]
        return sys.stderr


def setup_logging(run_dir: str | os.PathLike[str]) -> logging.Logger:
    """Send the logger `pld_ray` to `<run_dir>/train.log`, appending, and warnings to stderr too.

    Calling it again, for the same or another run of the process, replaces the earlier file.

    Returns:
        The logger `pld_ray`; `logging.getLogger("pld_ray.<part>")` writes to the same file.

    Raises:
        OSError: the file cannot be written.
    """
    path = pathlib.Path(run_dir) / LOG_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    to_file = _RunHandler(path, mode="a", encoding="utf-8")
    to_file.setFormatter(
        logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", _DATE)
    )
    console = _ConsoleHandler()
    console.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))

    close_logging()
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a handler of the root logger would print every line over the display
    logger.addHandler(to_file)
    logger.addHandler(console)
    return logger


def close_logging() -> None:
    """Close the run's log; the logger `pld_ray` behaves like any other again."""
    logger = logging.getLogger(LOGGER)
    for handler in list(logger.handlers):
        if isinstance(handler, (logging.FileHandler, _ConsoleHandler)):
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):  # a full disk
                handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


_DATE = "%Y-%m-%d %H:%M:%S"


def write_to_log(library: logging.Logger, logger: logging.Logger) -> None:
    """Send what a library logs to the file of `setup_logging`'s logger, and not to the console."""
    library.propagate = False
    library.handlers = [h for h in logger.handlers if isinstance(h, logging.FileHandler)]
