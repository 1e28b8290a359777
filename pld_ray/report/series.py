"""One metric over environment steps, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One metric: values over environment steps, one value a step, steps ascending."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, points: list[tuple[int, float]]) -> Series:
        """From (step, value) pairs in the order of logging; the last one of a step counts."""
        last = dict(sorted(points, key=lambda point: point[0]))  # a stable sort keeps that order
        return cls(np.array(list(last), np.int64), np.array(list(last.values()), np.float64))

    @property
    def last(self) -> float:
        """The value at the highest step."""
        return float(self.values[-1])

    def __len__(self) -> int:
        return len(self.steps)


def steps_to(series: Series | None, threshold: float) -> float:
    """Environment steps of the first value >= threshold; infinity where none is."""
    if series is None:
        return math.inf
    reached = series.steps[series.values >= threshold]
    return float(reached[0]) if len(reached) else math.inf


def steps_for_half(steps: Sequence[float]) -> float:
    """Steps by which at least half of the runs had reached the threshold; infinity: not yet.

    A run that has not reached it (infinity) counts as later than every other.
    """
    return sorted(steps)[math.ceil(len(steps) / 2) - 1] if steps else math.inf


def on_grid(series: Sequence[Series]) -> tuple[npt.NDArray[np.int64], Floats]:
    """Several runs' values on one grid of steps.

    The grid is the steps of the runs where they are the same. Where they are not, as with
    asynchronous sampling, it is evenly spaced from the step at which all runs have begun, and
    values between two evaluations are interpolated.

    Returns:
        Steps (T,) and values (runs, T); NaN where a run has no value because it ended earlier.
    """
    shared = np.unique(np.concatenate([s.steps for s in series]))
    common = [set(s.steps.tolist()) for s in series]
    ends = [int(s.steps[-1]) for s in series]
    exact = all(  # each run was evaluated at every step of the others that it reached
        steps == {t for t in shared.tolist() if t <= end}
        for steps, end in zip(common, ends, strict=True)
    )
    start = max(int(s.steps[0]) for s in series)
    grid = shared if exact else shared[shared >= start]
    if not exact and len(grid) > 2:  # near-equal steps of different runs become one
        spacing = float(np.median(np.concatenate([np.diff(s.steps) for s in series if len(s) > 1])))
        count = max(2, round((grid[-1] - start) / max(spacing, 1.0)) + 1)
        grid = np.unique(np.linspace(start, int(grid[-1]), count).round().astype(np.int64))
    values = np.full((len(series), len(grid)), np.nan)
    for row, s in zip(values, series, strict=True):
        inside = (grid >= s.steps[0]) & (grid <= s.steps[-1])
        row[inside] = np.interp(grid[inside], s.steps, s.values)
    return grid, values
