"""`pld-ray ls`."""

from __future__ import annotations

import argparse
import json
import shlex
import textwrap
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pld_ray.charts.numbers import short_number
from pld_ray.cli.arguments import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from pld_ray.runs.listing import Listed

SORTS: dict[str, Callable[[Listed], Any]] = {
    "name": lambda row: row.name,
    "success": lambda row: -1.0 if row.success is None else row.success,
    "steps": lambda row: row.env_steps,
    "time": lambda row: row.updated_s,
}
STYLES = {
    "running": "cyan",
    "finished": "green",
    "stopped early": "blue",
    "interrupted": "yellow",
    "failed": "red",
    "never started": "bright_black",
    "damaged": "red",
}
DASH = "-"
COLUMNS = ("run", "state", "base", "held", "validation", "steps", "seed", "age")
LEGEND = (
    "base, held: success on the held states, base policy and the run's best at its end; "
    "validation: the best while training, which chooses the checkpoint"
)


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "ls",
        "FOLDER is `outputs` by default; a sweep's folder lists its trials.",
    )
    parser.positional("folder", "where to look", "?")
    parser.value(
        "sort",
        "|".join(SORTS),
        "success, steps and time: the highest or newest first",
        default="name",
        values=tuple(SORTS),
    )
    parser.switch("trials", "the trials of every sweep too, with what each tries")
    parser.switch("json", "a list of objects, rates in [0, 1]")
    return parser


def run(args: argparse.Namespace) -> int:
    """List runs and sweeps."""
    from pld_ray.runs.listing import list_folder

    folder = args.folder or "outputs"
    rows = list_folder(folder, args.trials)
    rows.sort(key=SORTS[args.sort], reverse=args.sort != "name")
    if args.json:
        print(json.dumps([row.as_json() for row in rows], indent=1))
    elif not rows:
        named = shlex.quote(folder)
        print(f"no run below {folder}: pld-ray train --output_dir={named}/NAME makes one")
    else:
        print_table(rows, plain_console())
    return 0


def plain_console() -> Console:
    """A console that writes plain text where stdout is no terminal or NO_COLOR is set."""
    import os

    from rich.console import Console

    return Console(
        color_system=None if os.environ.get("NO_COLOR") else "auto", highlight=False, markup=False
    )


def print_table(rows: list[Listed], console: Console) -> None:
    """One line a run, under its task; tasks in the order of their first run.

    A name that leaves no room for the figures has a line of its own.
    """
    from rich.text import Text

    tasks = list(dict.fromkeys(row.task for row in rows))
    indent = "  " * (len(tasks) > 1)
    table = [COLUMNS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    room = console.width - sum(widths[1:]) - 2 * (len(COLUMNS) - 1) - len(indent)
    widths[0] = max(min(widths[0], room), len(COLUMNS[0]))

    def print_line(line: tuple[str, ...], style: str) -> None:
        name, state, *figures = line
        if len(name) > widths[0]:
            console.print(indent + name, soft_wrap=True)
            name = ""
        parts: list[str | tuple[str, str]] = [
            f"{indent}{name:{widths[0]}}  ",
            (f"{state:{widths[1]}}", style),
        ]
        parts += [f"  {f:>{width}}" for f, width in zip(figures, widths[2:], strict=True)]
        console.print(Text.assemble(*parts), soft_wrap=True)

    print_line(COLUMNS, "")
    for task in tasks:
        if len(tasks) > 1:
            heading = (task or "several tasks, or none yet").replace("_", " ")
            console.print(Text(textwrap.shorten(heading, console.width, placeholder="..."), "bold"))
        for row in rows:
            if row.task == task:
                print_line(cells(row), STYLES.get(row.state, ""))
    if len(tasks) == 1:
        console.print(f"task: {tasks[0] or 'unknown'}", soft_wrap=True)
    if any(row.best_validation_success is not None for row in rows):
        console.print(Text(LEGEND, "dim"))


def cells(row: Listed) -> tuple[str, ...]:
    """A row of the table, as `COLUMNS`."""
    return (
        f"{row.name} {row.point}".rstrip(),
        state_text(row),
        rate(row.base_success),
        rate(row.success if row.held else None),
        rate(row.best_validation_success),
        steps(row),
        DASH if row.seed is None else str(row.seed),
        age(row.updated_s),
    )


def state_text(row: Listed) -> str:
    """The state; of a sweep also how many of its trials are over, and how many failed."""
    if row.kind != "sweep":
        return row.state
    over = sum(row.trials.get(state, 0) for state in ("finished", "stopped early", "failed"))
    failed = row.trials.get("failed", 0)
    text = f"{row.state} {over}/{sum(row.trials.values())}"
    return f"{text}, {failed} failed" if failed else text


def rate(value: float | None) -> str:
    """0.8333 -> `83%`."""
    return DASH if value is None else f"{100 * value:.0f}%"


def steps(row: Listed) -> str:
    """`12k/36k`."""
    total = "" if row.total_steps is None else f"/{short_number(row.total_steps)}"
    return f"{short_number(row.env_steps)}{total}"


def age(updated_s: float) -> str:
    """Time since then in its largest unit."""
    seconds = max(0.0, time.time() - updated_s)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
