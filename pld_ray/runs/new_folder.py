"""Where a new run may begin: a folder that is not there yet, or has nothing of a run in it."""

from __future__ import annotations

import os
import pathlib

from pld_ray.config import ConfigError
from pld_ray.runs.layout import (
    BUFFER,
    CHECKPOINTS,
    CONFIG_FILE,
    CURVE_FILE,
    DEMO_BUFFER,
    EVAL_INFO_FILE,
    METRICS_FILE,
    RESTARTS_FILE,
    SUMMARY_FILE,
    SWEEP_FILE,
    TRIALS,
    resuming,
)

OF_A_RUN = (
    *(METRICS_FILE, RESTARTS_FILE, SUMMARY_FILE, EVAL_INFO_FILE, CURVE_FILE),
    *(CHECKPOINTS, BUFFER, DEMO_BUFFER, SWEEP_FILE, TRIALS),
)
"""What a run or a sweep keeps, and another one would overwrite or mix with its own. A job's script,
what a shell writes and what a start that was killed has left may lie there."""


def check_empty(folder: pathlib.Path, option: str) -> None:
    """See that a folder is new or empty.

    Raises:
        ConfigError: naming the option that gave it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{option}={folder} holds something already: give a new folder")


def check_new(folder: pathlib.Path) -> None:
    """See that a new run can be begun in a folder; nothing is made.

    Args:
        folder: its whole path.

    Raises:
        ConfigError: it holds a run or something of one, or cannot be made.
    """
    try:
        if (folder / CONFIG_FILE).exists():
            raise ConfigError(
                f"output_dir={folder} already holds a run: continue it with "
                f"{resuming(folder)}, or choose another --output_dir"
            )
        there = next(path for path in (folder, *folder.parents) if path.exists())
        reason = "" if there.is_dir() else f"{there} is no folder"
        if not reason and not os.access(there, os.W_OK):
            reason = f"no permission to write to {there}"
        if not reason and (held := [name for name in OF_A_RUN if (folder / name).exists()]):
            reason = f"it holds something of another run ({', '.join(held)})"
    except OSError as error:  # a name that is too long
        reason = error.strerror or str(error)
    if reason:
        raise ConfigError(f"output_dir={folder}: {reason}; choose another --output_dir")
