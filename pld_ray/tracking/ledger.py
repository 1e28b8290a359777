"""What was logged so far, so that a restart repeats no point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Ledger:
    """The newest step of each metric, how many points lie on it, and the parameters.

    A restart from an older checkpoint trains through steps again that were logged before, with
    other wall times and perhaps other values. The points of the first pass stay: after `restore`,
    `new_points` lets a metric through only beyond what it had reached by then.

    Args:
        state: of `state_dict`, as JSON gives it back.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.points = {key: (s, n) for key, (s, n) in state.get("points", {}).items()}
        """Metric -> (greatest step, points at that step)."""
        self.params: dict[str, str] = dict(state.get("params", {}))
        self._repeated: dict[str, tuple[int, int]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"points": self.points, "params": self.params}

    def restore(self) -> None:
        """Training goes back to an earlier step: what was logged until now is not logged again."""
        self._repeated = dict(self.points)

    def new_points(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """The values that were not logged before the last `restore`.

        A metric may have several points at one step; as many of them are left out as there were.
        """
        new = {}
        for key, value in values.items():
            reached, count = self._repeated.get(key, (-1, 0))
            if step > reached or (step == reached and count == 0):
                new[key] = value
            elif step == reached:
                self._repeated[key] = (reached, count - 1)
        return new

    def note(self, record: Mapping[str, Any]) -> None:
        """Take a record of the spool into account."""
        if record["kind"] == "metrics":
            for key in record["values"]:
                self.note_point(key, record["step"])
        elif record["kind"] == "params":
            self.params |= record["values"]

    def note_point(self, key: str, step: int) -> None:
        reached, count = self.points.get(key, (-1, 0))
        if step >= reached:
            self.points[key] = (step, count + 1 if step == reached else 1)
