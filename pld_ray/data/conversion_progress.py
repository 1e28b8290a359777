"""How far a conversion is, for a terminal or for nobody."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LINE_S = 30.0
"""Seconds between lines where there is no terminal."""


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
    """A bar with rate and remaining time on a terminal, elsewhere a line every half minute."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def phase(
        self, what: str, total: int, unit: str = "files", done: int = 0
    ) -> Iterator[Callable[[int], None]]:
        lines = self._lines if not self.console.is_terminal else self._bar
        with lines(what, total, unit, done) as advance:
            yield advance

    @contextlib.contextmanager
    def _bar(self, what: str, total: int, unit: str, done: int) -> Iterator[Callable[[int], None]]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]}")
        what_now, share = TextColumn("{task.description}"), TextColumn("{task.percentage:3.0f}%")
        columns = (what_now, BarColumn(), share, rate, TimeRemainingColumn())
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task(what, total=total, completed=done, rate="")
            begun = bar.get_time()
            count = 0

            def advance(amount: int) -> None:
                nonlocal count
                count += amount
                bar.update(task, advance=amount, rate=speed(count, bar.get_time() - begun, unit))

            yield advance

    @contextlib.contextmanager
    def _lines(
        self, what: str, total: int, unit: str, done: int
    ) -> Iterator[Callable[[int], None]]:
        clock = self.console.get_time
        begun = said = clock()
        count = 0

        def advance(amount: int) -> None:
            nonlocal count, said
            count += amount
            if clock() - said >= LINE_S:
                said = clock()
                self.note(f"{what}: {so_far(done, count, total, said - begun, unit)}")

        yield advance
        elapsed = clock() - begun
        self.note(f"{what}: {count} {unit} in {elapsed:.1f} s, {speed(count, elapsed, unit)}")


def so_far(done: int, count: int, total: int, seconds: float, unit: str) -> str:
    """How far it is and how long it will take; a total of 0 is not known.

    Args:
        done: before it began.
        count: since then, in so many seconds.
    """
    there = done + count
    words = f"{there} of {total} {unit} ({there / total:.0%})" if total else f"{there} {unit}"
    words += f", {speed(count, seconds, unit)}, {duration(seconds)} elapsed"
    if not total or not count:
        return words
    return f"{words}, {duration((total - there) * seconds / count)} left"


def speed(count: int, seconds: float, unit: str) -> str:
    """`12 files/s`, or `32.6 s per file` where it is less than one a second."""
    per_second = count / max(seconds, 1e-9)
    if 0 < per_second < 1:
        return f"{1 / per_second:.1f} s per {unit.removesuffix('s')}"
    return f"{per_second:.0f} {unit}/s"


def duration(seconds: float) -> str:
    """`0:01:05`; never negative."""
    return str(datetime.timedelta(seconds=max(0, int(seconds))))
