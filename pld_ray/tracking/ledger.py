"""Which points an MLflow run has, so that a restart repeats none."""

from __future__ import annotations

from collections.abc import Mapping

Points = dict[str, tuple[int, int]]
"""Metric -> (greatest step, points at that step)."""


class Ledger:
    """The newest step of each metric, and how many points lie on it.

    A restart from an older checkpoint trains through steps again that were logged before, with
    other wall times and perhaps other values. The points of the first pass stay: after `restart`,
    `new_points` lets a metric through only beyond what it had reached by then.

    Args:
        points: that the run has from elsewhere.
    """

    def __init__(self, points: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.points: Points = {key: (step, n) for key, (step, n) in (points or {}).items()}
        self._repeated: Points = dict(self.points)

    def restart(self) -> None:
        """Training goes back to an earlier step: what was logged until now is not logged again."""
        self._repeated = dict(self.points)

    def new_points(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """The values that were not logged before the last `restart`; they are logged from now on.

        A metric may have several points at one step; as many of them are left out as there were.
        """
        new = {}
        for key, value in values.items():
            reached, count = self._repeated.get(key, (-1, 0))
            if step > reached or (step == reached and count == 0):
                new[key] = value
                self.note(key, step)
            elif step == reached:
                self._repeated[key] = (reached, count - 1)
        return new

    def note(self, key: str, step: int) -> None:
        """The run has one more point."""
        reached, count = self.points.get(key, (-1, 0))
        if step >= reached:
            self.points[key] = (step, count + 1 if step == reached else 1)
