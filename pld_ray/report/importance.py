"""Which swept parameter mattered: how much of the results' ranks each explains alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

MIN_POINTS = 6
"""Distinct settings below which nothing is claimed."""
MAX_LEVELS = 5
"""A number with more values than this is cut into quarters of the runs."""
SHUFFLES = 1_000
CHANCE = 95
"""Percentile of the shuffled shares that a parameter has to exceed."""

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Effect:
    """One parameter's part in the results."""

    share: float
    """Share of the rank variance between its values (eta squared of the ranks), in [0, 1]."""
    chance: float
    """What a parameter without any effect reaches in one sweep of twenty."""
    correlation: float | None
    """Spearman's rank correlation with the result; None where its values have no order."""

    @property
    def stands_out(self) -> bool:
        """Whether the share is more than chance."""
        return self.share > self.chance


@dataclass(frozen=True)
class Importance:
    """What can be said about the swept parameters."""

    n_runs: int
    n_points: int
    effects: dict[str, Effect] = field(default_factory=dict)
    """Parameter -> effect, the largest first."""
    note: str = ""
    """Why nothing is claimed."""


def estimate(rows: Sequence[tuple[Mapping[str, str], str, float]], seed: int = 0) -> Importance:
    """How much each parameter alone explains of the final results.

    The results are ranked, so neither scale nor outliers matter; the share is Kruskal and Wallis'
    H / (n - 1). What chance reaches is measured by shuffling a parameter's values among the points,
    seeds of a point staying together: they are no independent evidence.

    Args:
        rows: for each run its swept values, its point and its result.
    """
    points = list(dict.fromkeys(point for _, point, _ in rows))
    names = list(dict.fromkeys(name for values, _, _ in rows for name in values))
    results = [result for _, _, result in rows]
    if not rows:
        note = "no run has a result yet"
    elif not names:
        note = "no parameter was varied"
    elif len(points) < MIN_POINTS:
        note = (
            f"not enough trials, {len(points)} settings with a result; it takes {MIN_POINTS} to "
            "tell an effect from chance"
        )
    elif np.ptp(results) == 0:
        note = "every run had the same result"
    else:
        note = ""
    if note:
        return Importance(len(rows), len(points), note=note)
    from scipy.stats import rankdata, spearmanr

    place = np.array([points.index(point) for _, point, _ in rows])
    ranks = rankdata(results)
    rng = np.random.default_rng(seed)
    effects = {}
    for name in names:
        numbers, ordered = encode([values.get(name, "") for values, _, _ in rows])
        levels = to_levels(numbers, ordered)
        known = ordered and np.ptp(numbers) > 0
        of_point = np.zeros(len(points), np.int64)
        of_point[place] = levels
        shuffled = rng.permuted(np.tile(of_point, (SHUFFLES, 1)), axis=1)[:, place]
        effects[name] = Effect(
            share=float(explained(levels[None], ranks)[0]),
            chance=float(np.percentile(explained(shuffled, ranks), CHANCE)),
            correlation=float(spearmanr(numbers, results).statistic) if known else None,
        )
    largest_first = dict(sorted(effects.items(), key=lambda item: -item[1].share))
    return Importance(len(rows), len(points), largest_first)


def encode(values: Sequence[str]) -> tuple[Floats, bool]:
    """Numbers and flags as numbers; other texts by their place in sorted order.

    Returns:
        Numbers (runs,), and whether their order means something.
    """
    flags = {"false": 0.0, "true": 1.0}
    try:
        return np.array([flags.get(v.lower(), v) for v in values], np.float64), True
    except ValueError:
        known = sorted(set(values))
        return np.array([float(known.index(value)) for value in values]), False


def to_levels(numbers: Floats, ordered: bool) -> Codes:
    """Level of each run: one per distinct value, quarters of the runs for many ordered ones."""
    distinct, levels = np.unique(numbers, return_inverse=True)
    if ordered and len(distinct) > MAX_LEVELS:
        quarters = np.unique(np.quantile(numbers, [0.25, 0.5, 0.75]))
        levels = np.searchsorted(quarters, numbers, side="left")
    return levels.astype(np.int64)


def explained(levels: Codes, ranks: Floats) -> Floats:
    """Share of the variance of `ranks` (runs,) between the levels, for each row of `levels`."""
    centred = ranks - ranks.mean()
    between = np.zeros(len(levels))
    for level in np.unique(levels):
        inside = levels == level
        count = inside.sum(axis=1)
        between += (inside @ centred) ** 2 / np.maximum(count, 1)
    share: Floats = between / (centred**2).sum()
    return share
