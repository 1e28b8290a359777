"""Which suites and tasks exist, and where a task's BDDL file and init states lie."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import re
from pathlib import Path

from envs import bootstrap, pld_tabletop

HORIZONS = {  # environment steps at 20 Hz; LIBERO's are those of LeRobot
    pld_tabletop.SUITE: 200,
    "libero_spatial": 280,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
_SCENE_PREFIX = re.compile(r"^[A-Z_]+SCENE\d+_")


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One task: its files on disk and its place in the suite."""

    suite: str
    name: str
    index: int
    language: str
    bddl_file: Path
    init_states_file: Path
    horizon: int


def suite_names() -> list[str]:
    """The names of all suites."""
    return list(HORIZONS)


def suite_tasks(suite: str) -> list[str]:
    """Task names of `suite` in the order of their ids.

    Raises:
        ValueError: there is no such suite; the message lists the closest names.
        ImportError: a suite of LIBERO's, and LIBERO is not installed.
    """
    if suite not in HORIZONS:
        raise ValueError(f"Unknown suite {suite!r}. {_closest(suite, suite_names())}")
    if suite == pld_tabletop.SUITE:
        return list(pld_tabletop.TASKS)
    return list(_libero_tasks()[suite])


def default_task(suite: str) -> str:
    """The task which a suite plays when none is named: its first, but for `pld_tabletop`."""
    return pld_tabletop.DEFAULT_TASK if suite == pld_tabletop.SUITE else suite_tasks(suite)[0]


def find_task(suite: str, task: str | int | None = None) -> TaskSpec:
    """The task named `task`, or number `task`, of `suite`; None is the suite's default task.

    Raises:
        ValueError: unknown suite, name or number; the message lists the closest names.
    """
    names = suite_tasks(suite)
    if task is None:
        task = default_task(suite)
    if isinstance(task, str) and not (task.isdecimal() and task not in names):
        if task not in names:
            raise ValueError(f"Unknown task {task!r} in suite {suite!r}. {_closest(task, names)}")
        index = names.index(task)
    else:  # a command line hands a number over as text
        index = int(task)
        if not 0 <= index < len(names):
            raise ValueError(
                f"Task {index} of suite {suite!r}: numbers go from 0 to {len(names) - 1}."
            )
    name = names[index]
    bddl_folder, init_folder = _folders(suite)
    return TaskSpec(
        suite=suite,
        name=name,
        index=index,
        language=_SCENE_PREFIX.sub("", name).replace("_", " "),
        bddl_file=bddl_folder / f"{name}.bddl",
        init_states_file=init_folder / f"{name}.pruned_init",
        horizon=HORIZONS[suite],
    )


def _folders(suite: str) -> tuple[Path, Path]:
    if suite == pld_tabletop.SUITE:
        return pld_tabletop.TASKS_DIR, pld_tabletop.TASKS_DIR
    root = bootstrap.libero_root()
    return root / "bddl_files" / suite, root / "init_files" / suite


@functools.cache
def _libero_tasks() -> dict[str, list[str]]:
    """LIBERO's table of tasks, from its file: importing the package would take seconds."""
    path = bootstrap.libero_root() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("libero_suite_task_map", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be read: install hf-libero anew.")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    return dict(table.libero_task_map)


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else f"Known: {known}."
