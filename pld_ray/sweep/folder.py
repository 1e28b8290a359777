"""A sweep's folder: what it was started with, and the names of its trials."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import decode, dump_config, encode, read_config, read_stored
from pld_ray.files.atomic import write_atomically, write_json_atomically
from pld_ray.files.lock import LOCK_FILE, FolderLock
from pld_ray.runs.layout import (
    BASE_FILE,
    SWEEP_CONFIG_FILE,
    SWEEP_FILE,
    TRIALS,
    resuming,
    trial_folder,
)
from pld_ray.sweep import plan
from pld_ray.sweep.config import Sweep, SweepConfig
from pld_ray.sweep.ended import known_names, point_key

FORMAT_VERSION = 1


def check_new(folder: pathlib.Path) -> None:
    """See that a sweep can begin in a folder.

    Raises:
        ConfigError: it holds a sweep, or something else.
    """
    if (folder / SWEEP_FILE).exists():
        raise ConfigError(
            f"{folder} already holds a sweep: continue it with `pld-ray sweep {resuming(folder)}`, "
            "or give another name with --name=... or another --output_dir"
        )
    if folder.exists() and any(path.name != LOCK_FILE for path in folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: give another --name=... or --output_dir")


@contextlib.contextmanager
def claimed(folder: pathlib.Path) -> Iterator[None]:
    """A new sweep's folder is this process's inside, and is nobody's before.

    Raises:
        ConfigError: another process works there, or another sweep has come first.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = claim(folder)
    try:
        check_new(folder)
        yield
    finally:
        lock.release()
        for path in made:
            with contextlib.suppress(OSError):  # it holds the sweep
                path.rmdir()


def claim(folder: pathlib.Path) -> FolderLock:
    """The lock of a sweep's folder.

    Raises:
        ConfigError: another process has it.
    """
    lock = FolderLock(folder)
    owner = lock.claim()
    if owner is not None:
        raise ConfigError(f"{folder} is in use by {owner}: wait for it or stop it")
    return lock


def write_settings(sweep: Sweep, folder: pathlib.Path) -> None:
    """Write `sweep.yaml`, as it holds wherever the folder lies."""
    settings = decode(SweepConfig, encode(sweep.config))
    settings.output_dir = None
    write_atomically(folder / SWEEP_CONFIG_FILE, dump_config(settings))


def write_record(sweep: Sweep, folder: pathlib.Path) -> None:
    """Write `sweep.json`: from here on the folder holds a sweep."""
    content = {
        "format_version": FORMAT_VERSION,
        "name": sweep.config.name,
        "preset": sweep.preset,
        "pld_ray_version": version("pld-ray"),
        "num_trials": plan.num_trials(sweep),
        "distinct": sweep.distinct,
        "started_in": None if sweep.started_in is None else str(sweep.started_in),
    }
    write_json_atomically(folder / SWEEP_FILE, content)


def load_folder(folder: pathlib.Path) -> Sweep:
    """The sweep that a folder holds.

    Raises:
        ConfigError: it holds none, or one of another version.
    """
    record = read_record(folder)
    if record.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{folder / SWEEP_FILE}: format_version is {record.get('format_version')!r}, and this "
            f"pld-ray reads {FORMAT_VERSION}: continue it with the version that began it "
            f"({record.get('pld_ray_version', 'unknown')})"
        )
    try:
        config: SweepConfig = read_config(SweepConfig, folder / SWEEP_CONFIG_FILE)
        base: TrainConfig = read_stored(folder / BASE_FILE)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    config.output_dir = str(folder)
    distinct, started_in = record.get("distinct") is True, record.get("started_in")
    preset = str(record.get("preset", "default"))
    return Sweep(config, base, preset, distinct, pathlib.Path(started_in) if started_in else None)


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """`sweep.json` of a folder.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} holds no sweep: {SWEEP_FILE} is missing")
    try:
        record = json.loads(path.read_bytes())
        assert isinstance(record, dict)
    except (OSError, ValueError, AssertionError, RecursionError):
        raise ConfigError(f"{path} is damaged: it must hold a JSON object") from None
    return record


class TrialName:
    """Names a trial after its point's id; a searcher's points are counted as they come.

    A point that was begun before the sweep was resumed has its names already, one for each time
    that it was drawn.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.known = known_names(folder / TRIALS)

    def __call__(self, trial: Any) -> str:
        point = trial.config["point"]
        if "id" in point:
            return str(point["id"])
        key = point_key(point, trial.config.get("__trial_index__"))
        if self.known.get(key):
            return self.known[key].pop(0)
        # not their count: one may have been removed
        taken = (path.name[1:] for path in (self.folder / TRIALS).glob("t*"))
        name = plan.trial_id(max((int(n) for n in taken if n.isdecimal()), default=-1) + 1)
        trial_folder(self.folder, name).mkdir(parents=True)
        return name
