"""What a few seeds can say: interquartile mean, bootstrap intervals, steps to a threshold.

The conventions are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (rliable): the interquartile mean of all runs, and 95 % percentile intervals
of a bootstrap that resamples seeds within each task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pld_ray.report.runs import Series

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Reduces axis 1 (runs) of an array (resamples, runs, ...)."""

MIN_SEEDS = 3
"""With fewer, no interval is claimed."""
RESAMPLES = 2_000


def iqm(scores: Floats, axis: int = -1) -> Floats:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    As in scipy and rliable the number cut at either end is rounded down, so up to three scores are
    all kept and the IQM is their mean.

    Raises:
        ValueError: there are no scores.
    """
    scores = np.sort(np.asarray(scores, np.float64), axis=axis)
    n = scores.shape[axis]
    if n == 0:
        raise ValueError("the interquartile mean of no scores does not exist")
    cut = n // 4
    kept: Floats = np.take(scores, np.arange(cut, n - cut), axis=axis).mean(axis=axis)
    return kept


def mean(scores: Floats, axis: int = -1) -> Floats:
    """The mean, in the form that `bootstrap_interval` takes."""
    result: Floats = np.mean(scores, axis=axis)
    return result


def bootstrap_interval(
    strata: Sequence[Floats],
    statistic: Callable[..., Floats] = iqm,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Floats, Floats] | None:
    """Percentile interval of a statistic, with runs resampled within each stratum (task).

    Args:
        strata: for each task an array (runs, ...), the same trailing shape in each; a trailing
            axis, such as evaluation steps, is resampled with its run.
        statistic: called with `axis=1` on (resamples, all runs, ...).

    Returns:
        Low and high end, of the trailing shape; None with fewer than `MIN_SEEDS` runs in a stratum.
    """
    if not strata or min(len(runs) for runs in strata) < MIN_SEEDS:
        return None
    rng = np.random.default_rng(seed)
    drawn = [
        np.asarray(runs)[rng.integers(len(runs), size=(resamples, len(runs)))] for runs in strata
    ]
    estimates = statistic(np.concatenate(drawn, axis=1), axis=1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(estimates, [tail, 100 - tail], axis=0)
    return low, high


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


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None where either is constant."""
    a, b = average_ranks(x), average_ranks(y)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def average_ranks(values: Sequence[float]) -> Floats:
    """Ranks from 0, ties averaged."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts + 1) / 2)[inverse]
    return ranks
