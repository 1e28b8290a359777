"""How far a training run is, on a terminal or in a plain log."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pld_ray.tracking.terminal import leave_dead_terminal

RATE_WINDOW_S = 30.0


@dataclass
class ProgressState:
    """What is shown; None is not known yet."""

    phase: str = "starting"
    env_steps: int = 0
    """Environment steps of the whole run, those before a restart included."""
    updates: int = 0
    """Gradient steps of the whole run."""
    calql_steps: str | None = None
    """Done and wanted steps of the critic's initialisation, which `updates` leaves out."""
    train_success: float | None = None
    """Running success rate of training episodes in which nobody intervened, in [0, 1]."""
    assisted_success: float | None = None
    """Of those in which a person intervened; None before the first."""
    intervention_share: float | None = None
    """Of the running episodes' steps, those in which a person acted."""
    late_step_share: float | None = None
    """Of the steps at a control rate, those after which the next one began late."""
    eval_success: float | None = None
    """Success rate of base + residual in the last evaluation, in [0, 1]."""
    base_success: float | None = None
    """Success rate of the base policy, in [0, 1]."""
    base_states: str | None = None
    """The states that it is of: `held`, or `validation`, which are those of `eval_success`."""


class TrainProgress:
    """Live display on a terminal; elsewhere one plain line every `interval_s` seconds.

    Rates and the time left count from the first step of this process, so a resumed run shows
    neither the steps of its past nor their time as speed. It may be entered again after its end.

    Args:
        total_env_steps: of the whole run; None is not known before its end.
        env_steps, updates: already done, on resume.
        elapsed_s: seconds that the run took before a restart.
        interval_s: seconds between plain lines.
        stream: where to write; None is stdout.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        total_env_steps: int | None,
        *,
        env_steps: int = 0,
        updates: int = 0,
        elapsed_s: float = 0.0,
        interval_s: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_env_steps = total_env_steps
        self.state = ProgressState(env_steps=env_steps, updates=updates)
        self._stream = stream
        self._elapsed_before = elapsed_s
        self._interval_s = interval_s
        self._clock = clock
        self._start: float | None = None  # None while not entered
        self._live: Live | None = None
        self._printed: ProgressState | None = None
        self._marks: deque[tuple[float, int, int]] = deque()

    def __enter__(self) -> TrainProgress:
        self._start = self._clock()
        self._last_line, self._printed = -math.inf, None
        self._first = (self._start, self.state.env_steps)
        self._marks = deque([(self._start, self.state.env_steps, self.state.updates)])
        stream = self._stream or sys.stdout
        if stream.isatty():
            self._live = Live(
                console=Console(file=stream), get_renderable=self._render, refresh_per_second=2
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        leave_dead_terminal()
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self.state != self._printed:
            self._print_line()
        self._elapsed_before, self._start = self.elapsed_s, None

    def update(self, **changes: Any) -> None:
        """Change any fields of `ProgressState`, e.g. `update(phase="train", env_steps=1200)`.

        None keeps the last known value.

        Raises:
            TypeError: there is no such field.
        """
        before = self.state
        known = {name: value for name, value in changes.items() if value is not None}
        self.state = dataclasses.replace(before, **known)
        now = self._clock()
        self._marks.append((now, self.state.env_steps, self.state.updates))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_WINDOW_S:
            self._marks.popleft()
        if self._live is None and self._start is not None:
            due = now - self._last_line >= self._interval_s
            if due or self.state.phase != before.phase:
                self._print_line()

    # --- figures ---------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds of the whole run, those before a restart included."""
        running = self._clock() - self._start if self._start is not None else 0.0
        return self._elapsed_before + running

    @property
    def rates(self) -> tuple[float, float]:
        """Environment steps and updates per second over the last half minute."""
        if len(self._marks) < 2:
            return 0.0, 0.0
        (t0, steps0, updates0), (t1, steps1, updates1) = self._marks[0], self._marks[-1]
        seconds = max(t1 - t0, 1e-9)
        return (steps1 - steps0) / seconds, (updates1 - updates0) / seconds

    @property
    def left_s(self) -> float | None:
        """Seconds to go at the mean speed since this process began, pauses to evaluate included."""
        if self._start is None or self.total_env_steps is None:
            return None
        done = self.state.env_steps - self._first[1]
        if done <= 0:
            return None
        left = max(
            0, self.total_env_steps - self.state.env_steps
        )  # the last iteration may overshoot
        return left * (self._clock() - self._start) / done

    # --- looks -----------------------------------------------------------------------------------

    def _print_line(self) -> None:
        self._last_line, self._printed = self._clock(), self.state
        line = "  ".join(f"{name} {value}" for name, value in self._figures().items())
        print(f"[{self.state.phase}] {line}", file=self._stream or sys.stdout, flush=True)

    def _figures(self) -> dict[str, str]:
        state = self.state
        steps_rate, updates_rate = self.rates
        total, left = "", ""
        base = "base"
        if state.base_success is not None and state.base_states is not None:
            base = f"base ({state.base_states})"
        if self.total_env_steps is not None:
            total, left = f"/{self.total_env_steps:,}", f", {_duration(self.left_s)} left"
        figures = {
            "steps": f"{state.env_steps:,}{total} ({steps_rate:.0f}/s)",
            "updates": f"{state.updates:,} ({updates_rate:.0f}/s)",
            "success": f"train {_percent(state.train_success)}, eval {_percent(state.eval_success)}"
            f", {base} {_percent(state.base_success)}",
            "time": f"{_duration(self.elapsed_s)} elapsed{left}",
        }
        if state.phase == "calql":
            figures["Cal-QL"] = state.calql_steps or "-"
        if state.intervention_share is not None:
            figures["person"] = (
                f"{_percent(state.intervention_share)} of the steps, "
                f"assisted success {_percent(state.assisted_success)}"
            )
        if state.late_step_share is not None:
            figures["late"] = f"{state.late_step_share:.1%} of the steps"
        return figures

    def _render(self) -> Group:
        figures = self._figures()
        total, fraction = None, ""
        if self.total_env_steps is not None:
            total = max(1, self.total_env_steps)
            fraction = f"{min(1.0, self.state.env_steps / total):.0%}"
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, justify="right")
        bar.add_row(
            Text(self.state.phase, style="bold cyan"),
            ProgressBar(total=total, completed=self.state.env_steps),
            fraction,
        )
        table = Table.grid(padding=(0, 2))
        for name, value in figures.items():
            table.add_row(Text(name, style="dim"), Text(value))
        return Group(bar, table)


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}"
