"""The folder of one run: what lies where, and checkpoints that are whole or absent."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import time
from typing import Any

from pld_ray.algorithm.algorithm import PROGRESS_FILE, ResidualSAC, write_json_atomically
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config_file import dump_config, read_config
from pld_ray.errors import UserError
from pld_ray.tracking.files import write_atomically

TRAINER_FILE = "trainer.json"
LOCK_FILE = "run.lock"


class RunError(UserError, RuntimeError):
    """The run cannot go on; the message says why and how to continue."""


class RunDir:
    """`config.yaml`, `train.log`, `metrics.jsonl`, `checkpoints/`, and the results of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path).resolve()
        self.checkpoints = self.path / "checkpoints"

    def check_new(self) -> None:
        """Make the folder unless it already holds a run.

        Raises:
            ConfigError: it does.
        """
        if (self.path / "config.yaml").exists():
            raise ConfigError(
                f"output_dir={self.path} already holds a run: continue it with "
                f"--resume={self.path}, or choose another --output_dir"
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def create(self, config: TrainConfig) -> None:
        """Write the configuration: from here on the folder holds a run."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        (self.path / "config.yaml").write_text(dump_config(config))

    def load_config(self) -> TrainConfig:
        """The configuration that the run was started with.

        Raises:
            ConfigError: the folder holds no run, or its configuration is not ours.
        """
        path = self.path / "config.yaml"
        if not path.is_file():
            raise ConfigError(f"{self.path} holds no run: config.yaml is missing")
        config: TrainConfig = read_config(TrainConfig, path)
        return config

    def claim(self, wait_s: float = 0.0) -> None:
        """Write `run.lock`: this process works in the folder until `release`.

        Args:
            wait_s: seconds to wait for another process that may be about to end.

        Raises:
            ConfigError: another process of this machine works there.
        """
        deadline = time.monotonic() + wait_s
        while (owner := self.owner()) not in (None, os.getpid()):
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{self.path} is in use by process {owner}: wait for it or stop it, or choose "
                    "another --output_dir"
                )
            time.sleep(0.1)
        content = {"pid": os.getpid(), "host": socket.gethostname()}
        write_atomically(self.path / LOCK_FILE, json.dumps(content) + "\n")

    def release(self) -> None:
        """The folder is free for another process."""
        (self.path / LOCK_FILE).unlink(missing_ok=True)

    def owner(self) -> int | None:
        """The living process of this machine that claimed the folder."""
        try:
            content = json.loads((self.path / LOCK_FILE).read_text())
            if content["host"] != socket.gethostname():
                return None
            os.kill(int(content["pid"]), 0)
        except PermissionError:
            return int(content["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return int(content["pid"])

    # --- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(
        self, algorithm: ResidualSAC, name: str, trainer_state: dict[str, Any]
    ) -> pathlib.Path:
        """Write `checkpoints/<name>` aside and move it into place.

        Raises:
            RunError: the disk is full or cannot be written; nothing half-written is left.
        """
        target = self.checkpoints / name
        partial = self.checkpoints / f".partial-{name}"
        retired = self.checkpoints / f".retired-{name}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            algorithm.save_checkpoint(str(partial))
            write_json_atomically(partial / TRAINER_FILE, trainer_state)
            if target.exists():
                os.replace(target, retired)
            os.replace(partial, target)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            last = self.latest_checkpoint()
            keep = f"; the last good checkpoint is {last}" if last else ""
            raise RunError(
                f"cannot write checkpoint {target}: {error.strerror or error}{keep}. Free space or "
                f"mend the folder, then continue with --resume={self.path}"
            ) from error
        finally:
            if retired.exists() and not target.exists():
                os.replace(retired, target)
            shutil.rmtree(retired, ignore_errors=True)
        return target

    def rename_checkpoint(self, name: str, new_name: str) -> None:
        """Put one checkpoint in the place of another; the old one stays until the new is there."""
        target, retired = self.checkpoints / new_name, self.checkpoints / f".retired-{new_name}"
        if target.exists():
            os.replace(target, retired)
        os.replace(self.checkpoints / name, target)
        shutil.rmtree(retired, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` periodic checkpoints."""
        periodic = sorted(self.checkpoints.glob("step_*"))
        for path in periodic[:-keep]:
            shutil.rmtree(path, ignore_errors=True)

    def latest_checkpoint(self) -> pathlib.Path | None:
        """The checkpoint with the most environment steps."""
        found = [p.parent for p in self.checkpoints.glob(f"*/{PROGRESS_FILE}")]
        found = [p for p in found if not p.name.startswith(".")]
        return max(found, key=checkpoint_steps, default=None)


def checkpoint_steps(path: pathlib.Path) -> tuple[int, float]:
    """Environment steps of a checkpoint, ties broken by age."""
    progress = json.loads((path / PROGRESS_FILE).read_text())
    return int(progress["env_steps"]), path.stat().st_mtime


def trainer_state(path: pathlib.Path) -> dict[str, Any]:
    """What the training loop itself wrote into a checkpoint."""
    file = path / TRAINER_FILE
    return json.loads(file.read_text()) if file.is_file() else {}


def run_of_checkpoint(checkpoint: str | os.PathLike[str]) -> RunDir:
    """The run that a checkpoint folder lies in.

    Raises:
        ConfigError: it is no checkpoint of ours, or lies outside its run's folder.
    """
    path = pathlib.Path(checkpoint).resolve()
    if not (path / PROGRESS_FILE).is_file():
        raise ConfigError(
            f"{checkpoint} is not a pld-ray checkpoint: {PROGRESS_FILE} is missing; give a folder "
            "that `pld-ray train` wrote under checkpoints/"
        )
    run = RunDir(path.parent.parent)
    if not (run.path / "config.yaml").is_file():
        raise ConfigError(f"{checkpoint}: {run.path / 'config.yaml'} is missing beside it")
    return run
