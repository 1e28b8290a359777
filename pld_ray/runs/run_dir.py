"""The folder of one run: what lies where, and checkpoints that are whole or absent."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import pathlib
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import command_of, config_class_of
from pld_ray.config.file import dump_config, read_mapping, read_stored
from pld_ray.errors import UserError
from pld_ray.files.atomic import flush, write_atomically, write_json_atomically
from pld_ray.files.lock import STALE_S, FolderLock
from pld_ray.files.manifest import MANIFEST_FILE, add_to_manifest, damaged
from pld_ray.runs.journal import Journal
from pld_ray.runs.layout import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    METRICS_FILE,
    PROGRESS_FILE,
    TRAINER_FILE,
    read_json,
    resuming,
    run_around,
)
from pld_ray.runs.new_folder import check_new
from pld_ray.runs.status import FAILED, INTERRUPTED, RUNNING, failure_reason, write_status

WRITTEN = {"env", "policy", "algorithm", "runners", "total_steps", "output_dir"}
"""In every `config.yaml`; the last key too, so that one that was cut off is not filled up."""
LAST = "ray_address"
"""The last key of a training run, but for groups that later releases added after it."""
PARTIAL, RETIRED, ASIDE = ".partial-", ".retired-", ".aside-"
"""Prefixes of checkpoints: being written, being replaced, left by a run that went on elsewhere."""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}


class RunError(UserError, RuntimeError):
    """The run cannot go on; the message says why and how to continue."""


class RunDir:
    """`config.yaml`, `train.log`, `metrics.jsonl`, `checkpoints/`, and the results of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path).resolve()
        self.checkpoints = self.path / CHECKPOINTS
        self.lock = FolderLock(self.path)

    def check_new(self) -> None:
        """See `pld_ray.runs.new_folder`; raises ConfigError."""
        check_new(self.path)

    @property
    def has_begun(self) -> bool:
        """Whether something was measured here, so that there is something to go on with."""
        return (self.path / METRICS_FILE).exists() or bool(self.find_checkpoints())

    @functools.cached_property
    def journal(self) -> Journal:
        """The run's metrics; ConfigError where the file is damaged."""
        return Journal(self.path / METRICS_FILE)

    def create(self, config: Any) -> None:
        """Write the configuration: from here on the folder holds a run."""
        write_atomically(self.path / CONFIG_FILE, dump_config(config))
        self.checkpoints.mkdir(exist_ok=True)

    def keep_config(self, config: Any) -> None:
        """`create`, and where a run goes on with other settings: they hold for the next, too."""
        if not (self.path / CONFIG_FILE).is_file() or self.load_config(type(config)) != config:
            self.create(config)

    def load_config(self, wanted: type = TrainConfig) -> Any:
        """The configuration that the run was started with, every value as it was.

        Args:
            wanted: the class that the caller understands.

        Raises:
            ConfigError: the folder holds no run, a run of another kind, or its configuration is
                not ours.
        """
        path = self.path / CONFIG_FILE
        if not path.is_file():
            around = run_around(self.path)
            hint = f"; it lies in the run {around}: give that folder" if around else ""
            raise ConfigError(f"{self.path} holds no run: config.yaml is missing{hint}")
        mapping = read_mapping(path)
        config_class = config_class_of(mapping)
        if not issubclass(config_class, wanted):
            raise ConfigError(
                f"{self.path} is a run of pld-ray {command_of(config_class)}, which this command "
                "does not take: pld-ray show says what can be done with it"
            )
        config = read_stored(path)
        own = [field.name for field in fields(config_class)]
        last = LAST if LAST in own else own[-1]
        if lacking := (WRITTEN.intersection(own) | {last}) - mapping.keys():
            raise ConfigError(
                f"{path} is damaged, it lacks {', '.join(sorted(lacking))}: put it back (MLflow "
                "keeps a copy among the run's artifacts), or start anew in another folder"
            )
        return config

    def claim(self, wait_s: float = 0.0) -> None:
        """Write `run.lock`: this process works in the folder until `release`.

        What a process that was killed while it saved has left behind is removed.

        Args:
            wait_s: seconds to wait for another process that may be about to end.

        Raises:
            ConfigError: another process works there, of this host or of one that shares the folder.
        """
        owner = self.lock.claim(wait_s)
        if owner is not None:
            here = owner.host == socket.gethostname()
            left = "" if here else f" (a host that died frees its folders after {STALE_S:.0f} s)"
            raise ConfigError(
                f"{self.path} is in use by {owner}: wait for it or stop it{left}, or choose "
                "another --output_dir"
            )
        self.sweep_leftovers()

    def release(self) -> None:
        """The folder is free for another process."""
        self.lock.release()

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """The folder is this process's inside; `status.json` says so, and why it ended if it fails.

        Whatever ends well inside says itself as what, with `set_status`.

        Raises:
            ConfigError: another process works there.
        """
        self.claim()
        try:
            write_status(self.path, RUNNING)
            yield
        except BaseException as error:
            state = FAILED if isinstance(error, Exception) else INTERRUPTED
            with contextlib.suppress(OSError):  # the disk may be what failed
                self.set_status(state, failure_reason(error) if state == FAILED else "")
            raise
        finally:
            self.release()

    @contextlib.contextmanager
    def disk_errors(self) -> Iterator[None]:
        """What the disk refuses inside is a RunError, which says how to go on."""
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            again = f"continue with {resuming(self.path)}" if self.has_begun else "start again"
            raise RunError(
                f"{error.filename or self.path} cannot be written: {os_reason(error)}. Free space "
                f"or mend the folder, then {again}"
            ) from error

    def set_status(self, state: str, reason: str = "") -> None:
        """Write what the run is doing, or how it ended; see `pld_ray.runs.status`."""
        write_status(self.path, state, reason)

    # --- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(
        self, write: Callable[[str], Any], name: str, trainer_state: dict[str, Any]
    ) -> pathlib.Path:
        """Write `checkpoints/<name>` aside and move it into place.

        Args:
            write: `Algorithm.save_checkpoint`, which is given the folder.
            name: of the checkpoint.
            trainer_state: the training loop's own.

        Raises:
            RunError: the disk is full or cannot be written; nothing half-written is left.
        """
        target = self.checkpoints / name
        partial, retired = (self.checkpoints / f"{mark}{name}" for mark in (PARTIAL, RETIRED))
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write(str(partial))
            write_json_atomically(partial / TRAINER_FILE, trainer_state)
            add_to_manifest(partial, TRAINER_FILE)
            if target.exists():
                os.replace(target, retired)
            os.replace(partial, target)
            flush(self.checkpoints)
        except OSError as error:
            last = self.latest_checkpoint()
            keep = f"; the last good checkpoint is {last}" if last else ""
            raise RunError(
                f"cannot write checkpoint {target}: {os_reason(error)}{keep}. Free space or "
                f"mend the folder, then continue with {resuming(self.path)}"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if retired.exists() and not target.exists():
                os.replace(retired, target)
            shutil.rmtree(retired, ignore_errors=True)
        return target

    def sweep_leftovers(self) -> None:
        """Remove what a process that was killed while it saved has left behind."""
        for retired in self.checkpoints.glob(f"{RETIRED}*"):
            target = self.checkpoints / retired.name.removeprefix(RETIRED)
            if not target.exists():
                os.replace(retired, target)
        for pattern in (f"{RETIRED}*", f"{PARTIAL}*"):
            for path in self.checkpoints.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def rename_checkpoint(self, name: str, new_name: str) -> None:
        """Put one checkpoint in the place of another; the old one stays until the new is there."""
        target, retired = self.checkpoints / new_name, self.checkpoints / f"{RETIRED}{new_name}"
        if target.exists():
            os.replace(target, retired)
        os.replace(self.checkpoints / name, target)
        shutil.rmtree(retired, ignore_errors=True)

    def prune(self, keep: int, names: str = "step_*") -> None:
        """Delete all but the newest `keep` periodic checkpoints, whose names have this form."""
        periodic = sorted(self.checkpoints.glob(names))
        for path in periodic[:-keep]:
            shutil.rmtree(path, ignore_errors=True)

    def find_checkpoints(self) -> list[pathlib.Path]:
        """Checkpoints by environment steps, most first; before them those that do not tell."""
        found = [p.parent for p in self.checkpoints.glob(f"*/{MANIFEST_FILE}")]
        found += [p.parent for p in self.checkpoints.glob(f"*/{PROGRESS_FILE}")]
        visible = {path for path in found if not path.name.startswith(".")}
        return sorted(visible, key=checkpoint_age, reverse=True)

    def latest_checkpoint(self) -> pathlib.Path | None:
        """The checkpoint with the most environment steps; see `find_checkpoints`."""
        return next(iter(self.find_checkpoints()), None)

    def checkpoint_named(self, name: str) -> pathlib.Path:
        """A checkpoint of the run.

        Raises:
            ConfigError: there is none of that name.
        """
        found = {path.name: path for path in self.find_checkpoints()}
        if name not in found:
            there = ", ".join(found) or "none"
            raise ConfigError(f"--checkpoint={name}: {self.checkpoints} holds {there}")
        return found[name]

    def go_on_from(self, checkpoint: pathlib.Path) -> None:
        """Hide newer checkpoints than the one the run goes on from, as `.aside-<name>`.

        They would be taken for the newest again, and push the run's own out of `keep`.
        """
        reached = checkpoint_steps(checkpoint)
        for path in self.find_checkpoints():
            if checkpoint_steps(path) <= reached:
                continue
            aside = path.with_name(f"{ASIDE}{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(path, aside)


def checkpoint_steps(path: pathlib.Path) -> tuple[float, int]:
    """Environment steps of a checkpoint, infinite where it does not tell, and updates."""
    progress = read_json(path / PROGRESS_FILE)
    steps, updates = progress.get("env_steps"), progress.get("updates")
    return (
        steps if isinstance(steps, int) else math.inf,
        updates if isinstance(updates, int) else 0,
    )


def checkpoint_age(path: pathlib.Path) -> tuple[float, int, float]:
    """Orders checkpoints: by `checkpoint_steps`, and by the time where they are of the same."""
    return *checkpoint_steps(path), path.stat().st_mtime


def older_checkpoint(path: pathlib.Path) -> pathlib.Path | None:
    """The next older checkpoint of the same run."""
    found = RunDir(path.parent.parent).find_checkpoints()
    after = found.index(path) + 1 if path in found else 0
    return next(iter(found[after:]), None)


def trainer_state(path: pathlib.Path) -> dict[str, Any]:
    """What the training loop itself wrote into a checkpoint; `{}` where it wrote nothing.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = path / TRAINER_FILE
    if not file.is_file():
        return {}
    try:
        state = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, f"it is no JSON ({error})") from None
    if not isinstance(state, dict):
        raise damaged(file, "it is no JSON object")
    return state


def run_of_checkpoint(checkpoint: str | os.PathLike[str]) -> RunDir:
    """The run that a checkpoint folder lies in.

    Raises:
        ConfigError: it is no checkpoint of ours, or lies outside its run's folder.
    """
    path = pathlib.Path(checkpoint).resolve()
    if not (path / PROGRESS_FILE).is_file():
        there = RunDir(path).find_checkpoints()
        best = min(there, key=lambda each: each.name != BEST, default=None)
        written = "a folder that `pld-ray train` wrote under checkpoints/"
        instead = written if best is None else shlex.quote(str(best))
        raise ConfigError(
            f"{checkpoint} is not a pld-ray checkpoint: {PROGRESS_FILE} is missing; give {instead}"
        )
    run = RunDir(path.parent.parent)
    if not (run.path / CONFIG_FILE).is_file():
        raise ConfigError(f"{checkpoint}: {run.path / 'config.yaml'} is missing beside it")
    return run


def os_reason(error: OSError) -> str:
    """What the system said, also where another process was told."""
    cause = getattr(error, "cause", None)
    told = cause if isinstance(cause, OSError) else error
    return told.strerror or str(told).strip().splitlines()[-1]
