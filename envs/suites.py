"""Which suites and tasks exist, and where a task's BDDL file and init states lie."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path

from envs import pld_tabletop

HORIZONS = {pld_tabletop.SUITE: 200}  # environment steps at 20 Hz


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One task: its files on disk and its place in the suite."""

    suite: str
    name: str
    index: int
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
    """
    if suite not in HORIZONS:
        raise ValueError(f"Unknown suite {suite!r}. {_closest(suite, suite_names())}")
    return list(pld_tabletop.TASKS)


def find_task(suite: str, task: str | int | None = None) -> TaskSpec:
    """The task named `task`, or number `task`, of `suite`; None is the suite's default task.

    Raises:
        ValueError: unknown suite, name or number; the message lists the closest names.
    """
    names = suite_tasks(suite)
    if task is None:
        task = pld_tabletop.DEFAULT_TASK
    if isinstance(task, str):
        if task not in names:
            raise ValueError(f"Unknown task {task!r} in suite {suite!r}. {_closest(task, names)}")
        index = names.index(task)
    else:
        index = int(task)
        if not 0 <= index < len(names):
            raise ValueError(
                f"Task {index} of suite {suite!r}: numbers go from 0 to {len(names) - 1}."
            )
    name = names[index]
    return TaskSpec(
        suite=suite,
        name=name,
        index=index,
        bddl_file=pld_tabletop.TASKS_DIR / f"{name}.bddl",
        init_states_file=pld_tabletop.TASKS_DIR / f"{name}.pruned_init",
        horizon=HORIZONS[suite],
    )


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else f"Known: {known}."
