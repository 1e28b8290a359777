"""Where a new run may begin: a folder that is not there yet, or has nothing in it."""

from __future__ import annotations

import os
import pathlib

from pld_ray.config import ConfigError
from pld_ray.files.lock import LOCK_FILE
from pld_ray.runs.layout import (
    CONFIG_FILE,
    LOG_FILE,
    MLFLOW_FILE,
    OUTBOX_FILE,
    SENT_FILE,
    STATUS_FILE,
)

LEFT_BY_A_START = {LOCK_FILE, STATUS_FILE, LOG_FILE, MLFLOW_FILE, OUTBOX_FILE, SENT_FILE}
"""Of a start that was killed before it wrote `config.yaml`; the next one goes on with them."""
OF_A_SHELL = {".log", ".out", ".err"}
"""Into which people redirect what the command prints."""
SHOWN = 3
"""Names in the message."""


def check_new(folder: pathlib.Path) -> None:
    """See that a new run can be begun in a folder; nothing is made.

    Args:
        folder: its whole path.

    Raises:
        ConfigError: it holds a run or something else, or cannot be made.
    """
    try:
        if (folder / CONFIG_FILE).exists():
            raise ConfigError(
                f"output_dir={folder} already holds a run: continue it with "
                f"--resume={folder}, or choose another --output_dir"
            )
        there = next(path for path in (folder, *folder.parents) if path.exists())
        reason = "" if there.is_dir() else f"{there} is no folder"
        if not reason and not os.access(there, os.W_OK):
            reason = f"no permission to write to {there}"
        if not reason and (held := foreign(folder)):
            reason = f"it holds something already ({', '.join(held)})"
    except OSError as error:  # a name that is too long
        reason = error.strerror or str(error)
    if reason:
        raise ConfigError(f"output_dir={folder}: {reason}; choose another --output_dir")


def foreign(folder: pathlib.Path) -> list[str]:
    """Names of what lies in a folder, but for hidden files, output of the command and what a start
    has left behind."""
    if not folder.is_dir():
        return []
    held = sorted(
        path.name
        for path in folder.iterdir()
        if not (path.name.startswith(".") or path.suffix in OF_A_SHELL)
        and path.name not in LEFT_BY_A_START
    )
    return [*held[:SHOWN], "..."] if len(held) > SHOWN else held
