"""Where a training run's MLflow run is, kept in the run's folder so that a resume continues it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import sqlite3
import urllib.parse

from pld_ray.config import ConfigError
from pld_ray.files.atomic import write_atomically
from pld_ray.runs.layout import MLFLOW_FILE

SQLITE = "sqlite:///"
SQLITE_TIMEOUT_S = 10
ARTIFACTS = "mlartifacts"
"""The folder beside a sqlite store."""


def write_record(run_dir: pathlib.Path, tracking_uri: str, run_id: str) -> None:
    """Write `<run_dir>/mlflow_run.json`."""
    record = {"tracking_uri": tracking_uri, "run_id": run_id}
    write_atomically(run_dir / MLFLOW_FILE, json.dumps(record, indent=2) + "\n")


def read_record(run_dir: str | os.PathLike[str]) -> dict[str, str] | None:
    """`{"tracking_uri", "run_id"}` of the MLflow run of `run_dir`; None if it was not tracked.

    Raises:
        ValueError: the file is not ours.
    """
    path = pathlib.Path(run_dir) / MLFLOW_FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        return {"tracking_uri": record["tracking_uri"], "run_id": record["run_id"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold tracking_uri and run_id as JSON ({error!r}); delete it to start a "
            "new MLflow run"
        ) from error


def sqlite_uri(folder: str | os.PathLike[str]) -> str:
    """The tracking URI of `<folder>/mlflow.db`."""
    return f"sqlite:///{pathlib.Path(folder).resolve() / 'mlflow.db'}"


CHANGED = "changed."
"""Begins the tags of parameters that a run which goes on has otherwise."""


def absolute(tracking_uri: str) -> str:
    """The URI; that of a sqlite file with its whole path, for processes that start elsewhere."""
    path, (_, question, query) = sqlite_path(tracking_uri), tracking_uri.partition("?")
    return tracking_uri if path is None else f"sqlite:///{path}{question}{query}"


def sqlite_path(tracking_uri: str) -> pathlib.Path | None:
    """The file of a sqlite tracking URI; None for any other kind."""
    file, _, _ = tracking_uri.partition("?")  # ?timeout=60 is the driver's
    return pathlib.Path(file.removeprefix(SQLITE)).resolve() if file.startswith(SQLITE) else None


def store_now(tracking_uri: str | None, recorded: str) -> str:
    """The tracking URI of a run that goes on: the recorded one, unless the store has moved.

    Older releases kept a relative URI as it was typed: from another folder it is another file.
    """
    if tracking_uri is None or tracking_uri.startswith(f"{SQLITE}/"):
        return tracking_uri or recorded
    asked, known = sqlite_path(tracking_uri), sqlite_path(recorded)
    same = asked is not None and known is not None and asked.name == known.name
    return recorded if same and known is not None and known.is_file() else tracking_uri


def move_artifacts(tracking_uri: str, run_id: str, recorded: str) -> None:
    """Let a run's artifacts lie beside a sqlite file that has moved along with `ARTIFACTS`.

    MLflow keeps their whole path, and would make the old folder anew. A run that has not ended has
    no artifacts at either place: it follows the file where the old one is gone.

    Args:
        tracking_uri: of the store now.
        run_id: of the run.
        recorded: the tracking URI that the run was logged to before.
    """
    store = sqlite_path(tracking_uri)
    if store is None:
        return
    ask, tell = "SELECT artifact_uri FROM runs", "UPDATE runs SET artifact_uri = ?"
    with (
        contextlib.closing(sqlite3.connect(store, timeout=SQLITE_TIMEOUT_S)) as file,
        contextlib.suppress(sqlite3.Error),  # whoever opens it next says what is wrong
        file,
    ):
        for (uri,) in file.execute(f"{ask} WHERE run_uuid = ?", [run_id]).fetchall():
            root, found, below = str(uri).rpartition(f"/{ARTIFACTS}/")
            old, new = pathlib.Path(urllib.parse.unquote(root)[7:]), store.parent
            there, beside = (folder / ARTIFACTS / below for folder in (old, new))
            gone = not (old / (sqlite_path(recorded) or store).name).is_file()
            moved = (beside.is_dir() or gone) and not there.is_dir()
            if found and root.startswith("file://") and moved:
                file.execute(f"{tell} WHERE run_uuid = ?", [beside.as_uri(), run_id])


def check_sqlite(tracking_uri: str, option: str = "--tracking_uri") -> None:
    """Refuse a sqlite file that is no store: MLflow would make one of it.

    Args:
        tracking_uri: where.
        option: by which another is given.

    Raises:
        ConfigError: naming the file.
    """
    path = sqlite_path(tracking_uri)
    if path is None:
        return
    if not path.is_file():
        raise ConfigError(
            f"{path}, the MLflow store, is missing: give its new place with {option}=sqlite:///..."
        )
    address = f"file:{urllib.parse.quote(str(path))}?mode=ro"
    try:
        with contextlib.closing(
            sqlite3.connect(address, uri=True, timeout=SQLITE_TIMEOUT_S)
        ) as file:
            columns = file.execute("PRAGMA table_info(runs)").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(
            f"{path} cannot be read as an MLflow store: {error}; give another with "
            f"{option}=sqlite:///..."
        ) from error
    if not columns:
        raise ConfigError(
            f"{path} is no MLflow store: the table `runs` is missing; give another with "
            f"{option}=sqlite:///..."
        )


def in_mlflow(tracking_uri: str, command: str) -> str:
    """A command of MLflow's own, as it is typed in a shell: those that restore take no store."""
    return f"`MLFLOW_TRACKING_URI={shlex.quote(tracking_uri)} mlflow {command}`"
