"""The rate at which an environment is stepped, and how often it was not kept."""

from __future__ import annotations

import time
from collections.abc import Callable

TOLERANCE = 0.1
"""Share of a period by which a step may begin after it was due without being late."""


class ControlClock:
    """Holds steps back to a rate. What comes late is counted and not made up for.

    Args:
        hz: steps per second.
        clock, sleep: of this machine.

    Attributes:
        steps: that had to be on time, since the counts were taken.
        late_steps: of these, those after which the next one began late.
    """

    def __init__(
        self,
        hz: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._period = 1.0 / hz
        self._clock, self._sleep = clock, sleep
        self._due = 0.0
        self.steps = self.late_steps = 0
        self.restart()

    def restart(self) -> None:
        """An episode begins now: the next step may begin, the one after it a period later."""
        self._due = self._clock() + self._period

    def tick(self) -> None:
        """A step is over: return when the next one is due, or at once where that has passed."""
        wait = self._due - self._clock()
        if wait > 0:
            self._sleep(wait)
        began = self._clock()
        late = began - self._due > TOLERANCE * self._period
        self.steps += 1
        self.late_steps += late
        self._due = (began if late else self._due) + self._period

    def take(self) -> tuple[int, int]:
        """`steps` and `late_steps`, which are 0 from now on."""
        counts = self.steps, self.late_steps
        self.steps = self.late_steps = 0
        return counts
