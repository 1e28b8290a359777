"""The metrics of a run as JSON lines, one report a line, in environment steps."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from pld_ray.files.atomic import write_atomically


class MetricsHistory:
    """Appends reports to a `metrics.jsonl` and drops what lies beyond a restored checkpoint.

    A line is on the disk when `append` returns. A line that a crash left torn is removed when the
    file is opened again.

    Args:
        path: the file, `metrics.jsonl`; made at the first report.
        restored_step: on resume, the environment steps of the checkpoint: later rows are dropped,
            because they will be written again.

    Raises:
        ValueError: the file holds a line, other than a torn last one, that is no report.
    """

    def __init__(self, path: str | os.PathLike[str], restored_step: int | None = None) -> None:
        self.path = pathlib.Path(path)
        if self.path.is_file():
            rows = read_history(self.path)
            if restored_step is not None:
                rows = [row for row in rows if row["env_steps"] <= restored_step]
            content = "".join(_line(row) for row in rows)
            if content != self.path.read_text(errors="replace"):
                write_atomically(self.path, content)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one report; it must have an integer `env_steps`. NaN and infinity become null.

        Raises:
            ValueError: `env_steps` is missing, or a value is neither number, text, flag nor None.
        """
        line = _line(_checked(row))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        """All reports, oldest first."""
        return read_history(self.path) if self.path.is_file() else []


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The reports of a `metrics.jsonl`, oldest first; a torn last line is left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another line is no report, naming file and line.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such metrics file")
    lines = path.read_text(errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            row["env_steps"] = int(row["env_steps"])
            rows.append(row)
        except (ValueError, KeyError, TypeError) as error:
            torn = number == len(lines)  # a whole line ends in a newline: nothing follows it
            if not torn and line.strip():
                raise ValueError(
                    f"{path}, line {number} is no report ({error!r}): mend or delete that line"
                ) from error
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _checked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON values: numpy and torch scalars as numbers, what is not finite as None."""
    if row.get("env_steps") is None:
        raise ValueError("a row of metrics.jsonl needs env_steps, the environment steps so far")
    checked: dict[str, Any] = {}
    for name, value in row.items():
        if getattr(value, "ndim", 0) == 0 and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        if not isinstance(value, (int, float, str, type(None))):
            raise ValueError(
                f"metric {name!r} is a {type(value).__name__}: a row takes single values"
            )
        checked[name] = value
    checked["env_steps"] = int(checked["env_steps"])
    return checked
