"""How far a conversion is, for a terminal or for nobody."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Steps:
    """Says nothing."""

    def note(self, text: str) -> None:
        """A line beside the bar."""

    @contextlib.contextmanager
    def phase(
        self, what: str, total: int, unit: str = "files", done: int = 0
    ) -> Iterator[Callable[[int], None]]:
        """One part of the work; yields what is called with each amount that is done."""
        yield lambda amount: None


class TerminalSteps(Steps):
    """A bar with rate and remaining time on a terminal, a line a phase elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def phase(
        self, what: str, total: int, unit: str = "files", done: int = 0
    ) -> Iterator[Callable[[int], None]]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]}")
        what_now, share = TextColumn("{task.description}"), TextColumn("{task.percentage:3.0f}%")
        columns = (what_now, BarColumn(), share, rate, TimeRemainingColumn())
        bar = Progress(*columns, console=self.console)
        if not self.console.is_terminal:
            bar.disable = True
        with bar:
            task = bar.add_task(what, total=total, completed=done, rate="")
            begun = bar.get_time()
            count = 0

            def advance(amount: int) -> None:
                nonlocal count
                count += amount
                per_second = count / max(bar.get_time() - begun, 1e-9)
                bar.update(task, advance=amount, rate=f"{per_second:.0f} {unit}/s")

            yield advance
            elapsed = max(bar.get_time() - begun, 1e-9)
        if not self.console.is_terminal:
            self.note(f"{what}: {count} {unit} in {elapsed:.1f} s, {count / elapsed:.0f} {unit}/s")
