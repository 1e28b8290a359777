"""What was asked for: run folders, sweep folders and run ids, as runs of their stores."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pld_ray.config import ConfigError
from pld_ray.report.runs import Run
from pld_ray.report.store import load_runs
from pld_ray.runs.layout import CONFIG_FILE, MLFLOW_FILE
from pld_ray.tracking.mlflow_record import read_record

RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Selection:
    """The runs of a report."""

    runs: list[Run]
    """Train runs and trials, each once, in the order given."""
    sweeps: list[Run]
    """Parent runs of the sweeps among what was given."""
    folders: list[pathlib.Path]
    """Folders that were given."""
    run_folders: dict[str, pathlib.Path] = field(default_factory=dict)
    """Run id -> its folder, of the runs of which that was given."""

    @property
    def title(self) -> str:
        """Name of the only sweep or run; otherwise how many there are."""
        tops = self.sweeps + [r for r in self.runs if not self.sweep_of(r)]
        if len(tops) == 1:
            return tops[0].tags.get("sweep") or tops[0].name or tops[0].run_id
        return f"{len(tops)} runs" if not self.sweeps else f"{len(tops)} sweeps and runs"

    def sweep_of(self, run: Run) -> Run | None:
        """The sweep that a trial belongs to, if it was given."""
        parent = run.tags.get("mlflow.parentRunId")
        return next((sweep for sweep in self.sweeps if sweep.run_id == parent), None)


def select(targets: Iterable[str], tracking_uri: str | None = None) -> Selection:
    """Read the runs of folders and run ids; a sweep stands for all its trials.

    Args:
        targets: run folders, sweep folders or MLflow run ids.
        tracking_uri: the store of run ids; for folders, in place of the one they name.

    Raises:
        ConfigError: a target is neither, was not tracked, or its store does not have it.
    """
    located = [locate(target, tracking_uri) for target in targets]
    found: dict[tuple[str, str], tuple[Run, list[Run]]] = {}
    for uri in dict.fromkeys(uri for uri, _, _ in located):
        run_ids = list(dict.fromkeys(run_id for other, run_id, _ in located if other == uri))
        families = load_runs(uri, run_ids)
        found |= {(uri, run_id): f for run_id, f in zip(run_ids, families, strict=True)}
    runs: dict[str, Run] = {}
    sweeps: dict[str, Run] = {}
    for uri, run_id, _ in located:
        run, children = found[uri, run_id]
        if children or run.tags.get("pld_ray.kind") == "sweep":
            sweeps[run.run_id] = run
            runs |= {child.run_id: child for child in children}
        else:
            runs[run.run_id] = run
    folders = [folder for _, _, folder in located if folder is not None]
    run_folders = {run_id: folder for _, run_id, folder in located if folder is not None}
    return Selection(list(runs.values()), list(sweeps.values()), folders, run_folders)


def locate(target: str, tracking_uri: str | None) -> tuple[str, str, pathlib.Path | None]:
    """Tracking URI, run id and folder (None for a run id) of one target."""
    folder = pathlib.Path(target)
    if folder.is_dir():
        try:
            record = read_record(folder)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if record is None:
            raise ConfigError(f"{folder} holds no {MLFLOW_FILE}{_hint(folder)}")
        return tracking_uri or record["tracking_uri"], record["run_id"], folder.resolve()
    if not RUN_ID.fullmatch(target):
        raise ConfigError(
            f"{target}: no such folder, and no MLflow run id either (32 hexadecimal digits)"
        )
    if tracking_uri is None:
        raise ConfigError(
            f"{target} is an MLflow run id: say in which store with --tracking_uri=..., such as "
            "--tracking_uri=sqlite:///outputs/mlflow.db"
        )
    return tracking_uri, target, None


def _hint(folder: pathlib.Path) -> str:
    if (folder / CONFIG_FILE).is_file():
        return (
            ": this run was not tracked (tracking.enabled=false, or it failed before it started); "
            "its metrics are in metrics.jsonl, see pld-ray show"
        )
    inside = sorted(path.parent for path in folder.glob(f"*/{MLFLOW_FILE}"))
    if inside:
        some = " ".join(map(str, inside[:3])) + (" ..." if len(inside) > 3 else "")
        return f"; the runs inside it do: give them, pld-ray report {some}"
    return ": give the folder of a run or of a sweep, or an MLflow run id with --tracking_uri=..."
