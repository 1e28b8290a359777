"""Runs grouped into points: the settings that were tried, each with its seeds."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pld_ray.report.inputs import Selection
from pld_ray.report.path_params import params_of
from pld_ray.report.runs import Run

SEEDS = ("seed", "collection_seed")
BOOKKEEPING = (
    *SEEDS,
    "output_dir",
    "offline_cache",
    "ray_address",
    "ray_port",
    "max_failures",
    "dump_interval",
    "learners.checkpoint_updates",
    "evaluation.num_env_runners",
    "evaluation.interval_steps",
    "evaluation.validation_states",
    "evaluation.held_states",
)
"""Parameters that distinguish runs, not settings."""
BOOKKEEPING_GROUPS = ("tracking.", "checkpoint.", "placement.", "sweep.")
LONG_NAME = 60
"""Characters beyond which runs that were compared are called by their folders."""
AXIS = re.compile(r"(?:^|, )((?:[\w.]+, )*[\w.]+)=")
"""The name of one axis in the tag `point`; several parameters that change together are one."""


@dataclass(frozen=True)
class Point:
    """One setting and its runs."""

    name: str
    """The values that make it, with full names."""
    label: str
    """The same with short names."""
    values: dict[str, str]
    """Swept axis or parameter -> value."""
    runs: list[Run]
    by_folder: bool = False
    """Whether the name is a run's folder, because the values make too long a one."""

    @property
    def seeds(self) -> int:
        """Runs of the point."""
        return len(self.runs)


def group(selection: Selection) -> list[Point]:
    """Points in the order of their first run.

    Trials are grouped by the tag `point`; other runs by the parameters in which they differ, seeds
    and bookkeeping apart, and called by their folders where these make long names.
    """
    runs = selection.runs
    settings = run_settings(runs)
    short = short_names(swept_parameters(runs))
    many_sweeps = len(selection.sweeps) > 1
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        text = run.tags.get("point")
        if text is None:
            text = ", ".join(f"{key}={value}" for key, value in settings[index].items())
        parent = run.tags.get("mlflow.parentRunId", "") if many_sweeps else ""
        groups.setdefault(f"{parent[:8]}: {text}" if parent else text, []).append(index)
    points = []
    for name, indices in groups.items():
        members = sorted((runs[i] for i in indices), key=_by_seed)
        values = settings[indices[0]]
        label = ", ".join(f"{short[k]}={v}" for k, v in values.items())
        if many_sweeps and (sweep := selection.sweep_of(members[0])):
            label = f"{sweep.name}: {label}" if label else sweep.name
        points.append(Point(name, label or _fallback_label(name, members), values, members))
    return _with_short_names(_with_unique_labels(points), selection)


def same_seed(runs: Sequence[Run]) -> list[list[int]]:
    """Indices of the runs of a point that have task and seeds in common, in the runs' order.

    They repeat each other and are no independent evidence; a run whose seed is not known is alone.
    """
    found: dict[tuple[str | None, ...], list[int]] = {}
    for index, run in enumerate(runs):
        alone = "" if run.seed else run.run_id
        found.setdefault((run.task, alone, run.seed, run.params.get(SEEDS[1])), []).append(index)
    return list(found.values())


def run_settings(runs: list[Run]) -> list[dict[str, str]]:
    """What distinguishes each run's setting from the others': axis or parameter -> value.

    An axis of the tag `point` that has one value in all runs distinguishes nothing and is left out,
    unless there is no other.
    """
    logged = params_of(runs)
    differing = differing_parameters(logged)
    settings = [
        {key: params[key] for key in differing if key in params}
        if (text := run.tags.get("point")) is None
        else parse_point(text)
        for run, params in zip(runs, logged, strict=True)
    ]
    keys = dict.fromkeys(key for values in settings for key in values)
    varied = {key for key in keys if len({values.get(key) for values in settings}) > 1}
    if not varied:
        return settings
    return [{key: values[key] for key in values if key in varied} for values in settings]


def parse_point(text: str) -> dict[str, str]:
    """The tag `point` taken apart: `a=1, b, c=[2, 3]` is `a` -> `1`, `b, c` -> `[2, 3]`."""
    found = list(AXIS.finditer(text))
    ends = [*(match.start() for match in found), len(text)][1:]
    return {m.group(1): text[m.end() : end] for m, end in zip(found, ends, strict=False)}


def swept_parameters(runs: list[Run]) -> list[str]:
    """Every axis or parameter by which points differ, in the order of their first run."""
    return list(dict.fromkeys(key for values in run_settings(runs) for key in values))


def differing_parameters(logged: Sequence[Mapping[str, str]]) -> list[str]:
    """Parameters that the runs do not share, seeds and bookkeeping apart, in the config's order."""
    keys = dict.fromkeys(key for params in logged for key in params)
    return [
        key
        for key in keys
        if key not in BOOKKEEPING
        and not key.startswith(BOOKKEEPING_GROUPS)
        and len({params.get(key) for params in logged}) > 1
    ]


def short_names(keys: list[str]) -> dict[str, str]:
    """`algorithm.utd` -> `utd`, as far as that stays unique."""
    last = [", ".join(part.rsplit(".", 1)[-1] for part in key.split(", ")) for key in keys]
    return {k: s if last.count(s) == 1 else k for k, s in zip(keys, last, strict=True)}


def _by_seed(run: Run) -> tuple[int, str]:
    return int(run.seed) if run.seed.isdecimal() else -1, run.trial


def _fallback_label(name: str, members: list[Run]) -> str:
    if name:
        return name
    return members[0].trial if len(members) == 1 else f"{len(members)} runs alike"


def _with_unique_labels(points: list[Point]) -> list[Point]:
    """Points whose short labels clash keep their full names."""
    labels = [point.label for point in points]
    return [
        point
        if labels.count(point.label) == 1 or not point.name
        else Point(point.name, point.name, point.values, point.runs)
        for point in points
    ]


def _with_short_names(points: list[Point], selection: Selection) -> list[Point]:
    """Where a name is too long, points of no sweep are called by the folder of their first run."""

    def is_by_values(point: Point) -> bool:
        return bool(point.values) and "point" not in point.runs[0].tags

    if not any(is_by_values(point) and len(point.label) > LONG_NAME for point in points):
        return points
    folders = folder_names(selection)

    def shortened(point: Point) -> Point:
        if not is_by_values(point):
            return point
        name, others = folders[point.runs[0].run_id], len(point.runs) - 1
        name += f" and {others} more" if others else ""
        return replace(point, name=name, label=name, by_folder=True)

    return [shortened(point) for point in points]


def folder_names(selection: Selection) -> dict[str, str]:
    """Run id -> the last parts of the run's folder, as many as tell the runs apart."""
    runs, given = selection.runs, selection.run_folders
    folders = [given.get(run.run_id) or run.tags.get("run_dir") or run.trial for run in runs]
    parts = [pathlib.PurePath(folder).parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return {run.run_id: name for run, name in zip(runs, names, strict=True)}
    return {run.run_id: f"{p[-1]} {run.run_id[:8]}" for run, p in zip(runs, parts, strict=True)}
