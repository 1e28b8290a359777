"""The metrics of a run, each written once: `metrics.jsonl`, one report a line.

History, plots and the log show these rows, and MLflow is sent them from here. A row is flat:
`env_steps`, `time/unix_ms` (unique, ascending) and the metrics.
"""

from __future__ import annotations

import math
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pld_ray.config import ConfigError
from pld_ray.files.json_lines import append_line, append_lines, mend_lines, read_lines, write_lines
from pld_ray.runs.layout import RESTARTS_FILE

TIME = "time/unix_ms"
NON_FINITE = "tracking/non_finite"
"""How many metrics of a row were NaN or infinite: they are null in it, and absent from MLflow."""
RESTART = "restart"
GIVEN_UP = "given_up_after"
"""Of a restart from a checkpoint that is not the newest: its environment steps."""
CALQL_STEPS = "calql/steps"
"""Of a row of the critic's initialisation: its steps so far."""

Row = dict[str, Any]


class Journal:
    """Appends rows to a `metrics.jsonl`, from any thread.

    A row is on the disk when `append` returns; a line that a crash left torn goes when the file is
    opened again. Rows that a restart repeats are moved to `metrics.restarts.jsonl` beside it.

    Args:
        path: the file; made at the first row.

    Attributes:
        on_append: may be set to what is to see each row that was written.

    Raises:
        ConfigError: the file holds a line, other than a torn last one, that is no report.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self.restarts_path = self.path.with_name(RESTARTS_FILE)
        self.on_append: Callable[[Row], None] = lambda row: None
        self._lock = threading.Lock()
        rows = reports(self.path, mend_lines) + reports(self.restarts_path, mend_lines)
        self._last_ms = max((int(row.get(TIME, 0)) for row in rows), default=0)
        self._is_restart = bool(rows)

    def append(self, row: Mapping[str, Any]) -> Row:
        """Write one report; it must have an integer `env_steps`.

        NaN and infinity become null and are counted in `tracking/non_finite`.

        Returns:
            The row as it was written.

        Raises:
            ValueError: `env_steps` is missing.
            TypeError: a value is neither number, text, flag nor None.
            OSError: it cannot be written.
        """
        checked = checked_row(row)
        with self._lock:
            if self._is_restart:
                self._note_restart()
            checked[TIME] = self._next_ms()
            append_line(self.path, checked)
        self.on_append(checked)
        return checked

    def restore(
        self,
        env_steps: int,
        updates: int | None = None,
        calql_steps: int | None = None,
        gives_up: bool = False,
    ) -> None:
        """Training goes back to a checkpoint: later rows go, because they will be written again.

        Args:
            env_steps: of the checkpoint.
            updates: of the checkpoint; rows of the same environment step from the first one of
                more updates on are later too. An offline phase has nothing but these.
            calql_steps: of the checkpoint; the same of Cal-QL, which counts no updates.
            gives_up: there are newer checkpoints, which are given up with all that was measured.
        """
        with self._lock:
            rows = self.rows()
            kept, left = split_at(rows, env_steps, updates, calql_steps)
            append_lines(self.restarts_path, left)
            self._note_restart({GIVEN_UP: env_steps} if gives_up else {})
            if left:
                write_lines(self.path, kept)

    def rows(self) -> list[Row]:
        """All reports, oldest first."""
        return read_history(self.path) if self.path.is_file() else []

    def everything(self) -> list[Row]:
        """All rows in the order in which they were written, those before a restart included.

        Between two lives stands `{"restart": true}`. Rows of releases that wrote no time come
        first.
        """
        with self._lock:
            rows = read_lines(self.restarts_path) + self.rows()
        known = {row[TIME]: row for row in rows if TIME in row}  # a crash may leave a row in both
        return [row for row in rows if TIME not in row] + [known[ms] for ms in sorted(known)]

    def stamp(self, after: int = 0) -> int:
        """A time for a record beside the rows, later than theirs and than `after`."""
        with self._lock:
            self._last_ms = max(self._last_ms, after)
            return self._next_ms()

    def _note_restart(self, about: Mapping[str, Any] | None = None) -> None:
        append_line(self.restarts_path, {TIME: self._next_ms(), RESTART: True, **(about or {})})
        self._is_restart = False

    def _next_ms(self) -> int:
        """Now; ascending also where the clock does not."""
        self._last_ms = max(int(time.time() * 1000), self._last_ms + 1)
        return self._last_ms


def split_at(
    rows: Sequence[Row], env_steps: int, updates: int | None, calql_steps: int | None = None
) -> tuple[list[Row], list[Row]]:
    """Rows up to a checkpoint, and later ones; see `Journal.restore`."""
    reached = {"updates": updates, CALQL_STEPS: calql_steps}
    kept: list[Row] = []
    left: list[Row] = []
    passed = False
    for row in rows:
        is_later = row["env_steps"] > env_steps
        if row["env_steps"] == env_steps:
            passed |= any(row.get(k, 0) > n for k, n in reached.items() if n is not None)
            is_later = passed
        (left if is_later else kept).append(row)
    return kept, left


def read_history(path: str | os.PathLike[str]) -> list[Row]:
    """The reports of a `metrics.jsonl`, oldest first; a torn last line is left out.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: another line is no report, naming file and line.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such metrics file")
    rows = reports(path, read_lines)
    for number, row in enumerate(rows, start=1):
        try:
            row["env_steps"] = int(row["env_steps"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}, line {number} is no report ({error!r}): mend or delete that line"
            ) from error
    return rows


def reports(path: pathlib.Path, read: Callable[[pathlib.Path, str], list[Row]]) -> list[Row]:
    """`read_lines` or `mend_lines` of a file of reports, with an error for a user."""
    try:
        return read(path, "report")
    except ValueError as error:
        raise ConfigError(str(error)) from error


def checked_row(row: Mapping[str, Any]) -> Row:
    """Plain JSON values: numpy and torch scalars as numbers; see `Journal.append`."""
    if row.get("env_steps") is None:
        raise ValueError("a row of metrics.jsonl needs env_steps, the environment steps so far")
    checked: Row = {}
    num_non_finite = 0
    for name, value in row.items():
        if getattr(value, "ndim", 0) == 0 and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            value, num_non_finite = None, num_non_finite + 1
        if not isinstance(value, (int, float, str, type(None))):
            raise TypeError(
                f"metric {name!r} is a {type(value).__name__}: a row takes single values"
            )
        checked[name] = value
    checked["env_steps"] = int(checked["env_steps"])
    return checked | ({NON_FINITE: num_non_finite} if num_non_finite else {})


def log_line(row: Row) -> str:
    """A row as `name=value ...`, for the log."""
    numbers = ((k, v) for k, v in row.items() if k != TIME and isinstance(v, int | float))
    return " ".join(f"{name}={value:.4g}" for name, value in numbers)
