"""Runs and sweeps below a folder, read from their files: no MLflow, no torch, no Ray."""

from __future__ import annotations

import os
import pathlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from pld_ray.config import ConfigError
from pld_ray.runs.layout import (
    CHECKPOINTS,
    CONFIG_FILE,
    ENDED_FILE,
    METRICS_FILE,
    STATUS_FILE,
    SUMMARY_FILE,
    SWEEP_FILE,
    TRIAL_FILE,
    TRIALS,
    read_json,
    sweep_around,
)
from pld_ray.runs.reading import NEVER_STARTED, is_metric, read_metrics, run_state
from pld_ray.runs.status import FAILED, FINISHED, INTERRUPTED, RUNNING, STOPPED, read_status

SKIPPED = {CHECKPOINTS, "mlartifacts", "mlruns", "cache", "tune", "videos", "report"}
SIGNS_OF_LIFE = (METRICS_FILE, SUMMARY_FILE, STATUS_FILE, CONFIG_FILE)
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Listed:
    """One run or sweep; None is not known."""

    kind: str
    """`run`, `trial` or `sweep`."""
    path: str
    name: str
    """Path below the folder listed."""
    state: str
    """`running`, `finished`, `stopped early`, `interrupted`,
    `failed`, `never started` or `damaged`."""
    reason: str = ""
    """Why it failed, or what is damaged, in a sentence."""
    task: str = ""
    point: str = ""
    """What a trial tries, its seed apart, such as `utd=2, gamma=0.97`."""
    seed: int | None = None
    base_success: float | None = None
    """Of the base policy, on the held states."""
    success: float | None = None
    """On the held states, once at the end; before that the newest validation."""
    held: bool = False
    """Whether `success` is of the held states."""
    best_validation_success: float | None = None
    """The highest of the evaluations while training, which chose the checkpoint."""
    least_validation_success: float | None = None
    """The lowest of them."""
    validation_base_success: float | None = None
    """Of the base policy, on the validation states; None in a run of an older release."""
    env_steps: int = 0
    total_steps: int | None = None
    updated_s: float = 0.0
    """Unix time of the last sign of life."""
    trials: dict[str, int] = field(default_factory=dict)
    """Of a sweep: state -> number."""
    best_trial: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values; the time as `age_s`."""
        row = asdict(self)
        row["age_s"] = round(time.time() - row.pop("updated_s"), 1)
        return row


def list_folder(folder: str | os.PathLike[str], trials: bool = False) -> list[Listed]:
    """Runs and sweeps below a folder, in the order of their paths.

    Args:
        folder: searched to any depth; a sweep's own folder lists its trials.
        trials: list the trials of every sweep after it.

    Raises:
        ConfigError: there is no such folder.
    """
    root = pathlib.Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{folder}: no such folder; runs are below their --output_dir")
    rows = []
    for path in find_folders(root):
        name = str(path.relative_to(root)) if path != root else root.resolve().name
        if not (path / SWEEP_FILE).is_file():
            rows.append(read_run(path, name))
            continue
        sweep, members = read_sweep(path, name)
        rows += [sweep, *members] if trials or path == root else [sweep]
    return rows


def find_folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Folders that hold a run or a sweep; what lies inside one is not searched."""
    for path, folders, files in os.walk(root):
        here = pathlib.Path(path)
        if SWEEP_FILE in files or (CONFIG_FILE in files and is_run(here)):
            folders.clear()
            yield here
        folders[:] = sorted(f for f in folders if f not in SKIPPED and not f.startswith("."))


def read_config(folder: pathlib.Path) -> dict[str, Any] | None:
    """The run's configuration; None where the file is not one of ours."""
    try:
        config = yaml.load((folder / CONFIG_FILE).read_text(), LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    ours = isinstance(config, dict) and {"env", "algorithm", "total_steps"} <= config.keys()
    return config if ours else None


def is_run(folder: pathlib.Path) -> bool:
    """Whether a folder with a `config.yaml` holds a run, be that file damaged."""
    begun = (folder / METRICS_FILE).is_file() or (folder / CHECKPOINTS).is_dir()
    return begun or read_config(folder) is not None


def read_run(folder: pathlib.Path, name: str, kind: str = "run") -> Listed:
    """One run's folder. A damaged file counts as one that is not there; not so `config.yaml`."""
    config = read_config(folder)
    if config is None:
        reason = f"{CONFIG_FILE} is damaged: put it back from the run's artifacts in MLflow"
        return Listed(kind=kind, path=str(folder), name=name, state="damaged", reason=reason)
    summary = {
        key: value for key, value in read_json(folder / SUMMARY_FILE).items() if is_metric(value)
    }
    metrics = read_metrics(folder / METRICS_FILE)
    held = summary.get("residual_success", metrics.held)
    state, reason = run_state(folder, summary, metrics)
    env = config.get("env")
    return Listed(
        kind=kind,
        path=str(folder),
        name=name,
        state=state,
        reason=reason,
        task=str(env.get("task", "")) if isinstance(env, dict) else "",
        point=short_point(str(read_json(folder / TRIAL_FILE).get("point", ""))),
        seed=whole(config.get("seed")),
        base_success=summary.get("base_success", metrics.base),
        success=held if held is not None else metrics.success,
        held=held is not None,
        best_validation_success=metrics.best,
        least_validation_success=metrics.least,
        validation_base_success=metrics.validation_base,
        env_steps=max(metrics.env_steps, whole(summary.get("env_steps")) or 0),
        total_steps=whole(config.get("total_steps")),
        updated_s=max(
            (
                file.stat().st_mtime
                for file in (folder / name for name in SIGNS_OF_LIFE)
                if file.is_file()
            ),
            default=0.0,
        ),
    )


def read_alone(folder: pathlib.Path) -> Listed:
    """One run by its folder's name; of a trial its sweep knows more than its own files tell."""
    folder = folder.resolve()
    if (sweep := sweep_around(folder)) is not None:
        for trial in read_sweep(sweep, sweep.name)[1]:
            if pathlib.Path(trial.path) == folder:
                trial.name = folder.name
                return trial
    return read_run(folder, folder.name)


def short_point(point: str) -> str:
    """A point without the groups of its keys: `algorithm.utd=2` is `utd=2`."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w+[=,])", "", point)


def whole(value: Any) -> int | None:
    """A whole number, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_sweep(folder: pathlib.Path, name: str) -> tuple[Listed, list[Listed]]:
    """A sweep, with the figures of the trial that is best in validation, and its trials."""
    record = read_json(folder / SWEEP_FILE)
    folders = sorted(path.parent for path in (folder / TRIALS).glob(f"*/{CONFIG_FILE}"))
    trials = [read_run(path, f"{name}/{path.name}", "trial") for path in folders]
    signs = [trial.updated_s for trial in trials] + [(folder / SWEEP_FILE).stat().st_mtime]
    status = read_status(folder)
    state = status.state if status else str(record.get("state", INTERRUPTED))
    if status is None and state == RUNNING and not any(t.state == RUNNING for t in trials):
        state = INTERRUPTED
    killed = FAILED if read_json(folder / SUMMARY_FILE).get("num_failed") else STOPPED
    for trial in trials:
        if trial.state in (INTERRUPTED, NEVER_STARTED):  # the latter may have reported nothing yet
            if (pathlib.Path(trial.path) / ENDED_FILE).is_file():
                trial.state = STOPPED  # by the scheduler, or the end of the sweep's time
            elif state == FINISHED:  # its process could not say so
                trial.state = killed
    known = [trial for trial in trials if trial.best_validation_success is not None]
    # as in summary.json: the held states are for saying how good it is, not for choosing
    best = max(known, key=lambda t: t.best_validation_success or 0.0, default=None)
    tasks = {trial.task for trial in trials}
    sweep = Listed(
        kind="sweep",
        path=str(folder),
        name=name,
        state=state,
        reason=status.reason if status and status.reason else why_one_waits(trials),
        task=tasks.pop() if len(tasks) == 1 else "",
        base_success=best.base_success if best else None,
        success=best.success if best else None,
        held=best is not None and best.held,
        best_validation_success=best.best_validation_success if best else None,
        least_validation_success=best.least_validation_success if best else None,
        validation_base_success=best.validation_base_success if best else None,
        env_steps=sum(trial.env_steps for trial in trials),
        updated_s=max(signs),
        trials=_count_states(trials, whole(record.get("num_trials")) or 0),
        best_trial=pathlib.Path(best.path).name if best else None,
    )
    return sweep, trials


def why_one_waits(trials: list[Listed]) -> str:
    """What the first trial that waits says of it; its log is nowhere near the sweep's console."""
    waiting = [trial for trial in trials if trial.state == RUNNING and trial.reason]
    return f"{pathlib.Path(waiting[0].path).name}: {waiting[0].reason}" if waiting else ""


def _count_states(trials: list[Listed], planned: int) -> dict[str, int]:
    states = dict(Counter(trial.state for trial in trials))
    if planned > len(trials):
        states[NEVER_STARTED] = states.get(NEVER_STARTED, 0) + planned - len(trials)
    return states
