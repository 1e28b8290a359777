"""The results of a report: one summary per run and per point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import numpy as np
import numpy.typing as npt

from pld_ray.report.importance import MIN_POINTS, Importance, estimate
from pld_ray.report.inputs import Selection
from pld_ray.report.points import Point, group, same_seed, swept_parameters
from pld_ray.report.runs import (
    BASE,
    HELD_BASE,
    HELD_SUCCESS,
    INTERVENTION_SHARE,
    N_EPISODES,
    SUCCESS,
    UPDATES,
    VALIDATION_BASE,
    VALIDATION_STATES,
    WALL_S,
    Run,
)
from pld_ray.report.series import Series, on_grid, steps_for_half, steps_to
from pld_ray.statistics import bootstrap_interval, iqm

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunSummary:
    """One run's results; None is not recorded."""

    run: Run
    final: float | None
    """Success on the held states, else in the last evaluation while training."""
    held: bool
    """Whether `final` is of the held states."""
    best: float | None
    """Best success on the validation states."""
    base: float | None
    """Success of the base policy on the states that `final` is of."""
    base_at_start: float | None
    """Success of the base policy on the held states as the run logs it when it begins."""
    validation_base: float | None
    """Success of the base policy on the states of the curve; older runs do not log it."""
    steps_to_threshold: float
    """Infinity where no evaluation reached it."""
    wall_s: float | None
    steps_per_s: float | None
    updates_per_s: float | None
    """Since the first update."""

    @property
    def evaluated_to(self) -> int | None:
        """Environment steps of the last evaluation."""
        series = self.run.metrics.get(SUCCESS)
        return int(series.steps[-1]) if series is not None else None

    @property
    def missed_by(self) -> int | None:
        """Steps by which the threshold was not reached; None where it was, or where the run broke
        off: what it would have needed is not known."""
        broke_off = self.run.status in ("FAILED", "KILLED")
        return None if math.isfinite(self.steps_to_threshold) or broke_off else self.evaluated_to


@dataclass(frozen=True)
class Curve:
    """Success of a point over environment steps, or another rate."""

    steps: npt.NDArray[np.int64]
    mean: Floats
    complete: int
    """Leading steps that every run of the point reached."""
    low: Floats | None
    high: Floats | None
    """95 % interval over those steps; None with fewer than three seeds."""
    runs: list[Series]

    @property
    def is_partial(self) -> bool:
        """Whether some of the runs ended before the others."""
        return self.complete < len(self.steps)


@dataclass(frozen=True)
class PointSummary:
    """One point's results over its runs."""

    point: Point
    runs: list[RunSummary]
    iqm: float | None
    mean: float | None
    low: float | None
    high: float | None
    """95 % interval of the IQM; None with fewer than three evaluated seeds."""
    base: float | None
    steps_to_threshold: float
    """Steps by which half of the runs had reached it; infinity: not yet."""
    curve: Curve | None
    person: Curve | None
    """Share of the training steps in which a person acted; None where nobody ever did."""
    finals: list[float]
    """Final success of each seed that has one, of several runs with the same seed their mean."""

    @property
    def missed_by(self) -> int | None:
        """Fewest steps by which a run had not reached the threshold; see `RunSummary.missed_by`."""
        return min((run.missed_by for run in self.runs if run.missed_by is not None), default=None)

    def is_separable_from(self, other: PointSummary) -> bool:
        """Whether the 95 % intervals of both are known and do not overlap."""
        return are_apart((self.low, self.high), (other.low, other.high))


def are_apart(
    first: tuple[float | None, float | None], second: tuple[float | None, float | None]
) -> bool:
    """Whether two intervals are known and do not overlap."""
    (low, high), (other_low, other_high) = first, second
    if low is None or high is None or other_low is None or other_high is None:
        return False
    return low > other_high or other_low > high


@dataclass(frozen=True)
class Summary:
    """All results of a report."""

    selection: Selection
    threshold: float
    points: list[PointSummary]
    """Best first; points without an evaluation last."""
    swept: list[str]
    importance: Importance

    @property
    def runs(self) -> list[RunSummary]:
        """Every run, in the order of the points."""
        return [run for point in self.points for run in point.runs]

    @property
    def best(self) -> PointSummary | None:
        """The point of the highest IQM, None where nothing was evaluated."""
        return self.points[0] if self.points and self.points[0].iqm is not None else None

    @property
    def rivals(self) -> list[PointSummary]:
        """Evaluated points that the runs do not separate from the best one."""
        best = self.best
        rest = [point for point in self.points[1:] if point.iqm is not None]
        return [point for point in rest if best is not None and not best.is_separable_from(point)]

    @property
    def final_on(self) -> str:
        """Which states the final success is of: `held`, `validation` or `mixed`."""
        held = {run.held for run in self.runs if run.final is not None}
        if held == {True}:
            return "held"
        return "mixed" if True in held else "validation"

    @property
    def base(self) -> float | None:
        """Success of the base policy on the states of the final success, where the runs agree."""
        return _agreed(run.base for run in self.runs if run.held or self.final_on == "validation")

    @property
    def base_of_curves(self) -> tuple[float, str] | None:
        """Success of the base policy to be drawn with the curves, and the states that it is of:
        `same`, or `held` where no run knows better; None where the runs do not agree."""
        bases = [run.validation_base for run in self.runs if run.evaluated_to is not None]
        if any(base is not None for base in bases):
            same = _agreed(bases)
            return None if same is None else (same, "same")
        held = _agreed(run.base_at_start for run in self.runs)
        return None if held is None else (held, "held")


def _agreed(rates: Iterable[float | None]) -> float | None:
    """The median of rates that lie within two points."""
    known = [rate for rate in rates if rate is not None]
    agree = bool(known) and round(max(known) - min(known), 6) <= 0.02  # .52 - .50 is a little more
    return float(np.median(known)) if agree else None


def summarize(selection: Selection, threshold: float = 0.8) -> Summary:
    """Compute every result of a report."""
    points = [_summarize_point(point, threshold) for point in group(selection)]
    points.sort(key=lambda p: (-math.inf if p.iqm is None else p.iqm, p.mean or 0), reverse=True)
    results = [_results(s.point, [run for run in s.runs if run.final is not None]) for s in points]
    ended = [_results(s.point, [run for run in s.runs if run.held]) for s in points]
    if sum(map(bool, ended)) >= MIN_POINTS:
        results = ended  # what a run had when it was stopped compares with nothing
    swept = swept_parameters(selection.runs)
    return Summary(selection, threshold, points, swept, estimate([*chain(*results)]))


def _results(point: Point, runs: Sequence[RunSummary]) -> list[tuple[dict[str, str], str, float]]:
    """Values, name and final success of a point's runs, those of one seed together."""
    seeds = same_seed([run.run for run in runs])
    return [(point.values, point.name, fmean(runs[i].final or 0.0 for i in s)) for s in seeds]


def _summarize_point(point: Point, threshold: float) -> PointSummary:
    runs = [summarize_run(run, threshold) for run in point.runs]
    ended = [(run.run, run.final) for run in runs if run.final is not None]
    by_task: dict[str, list[float]] = {}
    for alike in same_seed([run for run, _ in ended]):
        mean = fmean(ended[i][1] for i in alike)
        by_task.setdefault(ended[alike[0]][0].task, []).append(mean)
    strata = [np.array(finals) for finals in by_task.values()]
    finals = np.concatenate(strata) if strata else np.array([])
    interval = bootstrap_interval(strata)
    any_held = any(run.held for run in runs)
    bases = [run.base for run in runs if run.base is not None and run.held == any_held]
    return PointSummary(
        point,
        runs,
        iqm=float(iqm(finals)) if len(finals) else None,
        mean=float(finals.mean()) if len(finals) else None,
        low=float(interval[0]) if interval else None,
        high=float(interval[1]) if interval else None,
        base=float(np.mean(bases)) if bases else None,
        steps_to_threshold=steps_for_half([run.steps_to_threshold for run in runs]),
        curve=curve_of(point.runs, SUCCESS),
        person=curve_of(point.runs, INTERVENTION_SHARE),
        finals=finals.tolist(),
    )


def summarize_run(run: Run, threshold: float) -> RunSummary:
    """One run's results."""
    evaluated = run.metrics.get(SUCCESS)
    held, base, same = run.last(HELD_SUCCESS), run.last(BASE), run.last(VALIDATION_BASE)
    wall, updates = run.metrics.get(WALL_S), run.metrics.get(UPDATES)
    return RunSummary(
        run,
        final=held if held is not None else run.last(SUCCESS),
        held=held is not None,
        best=float(evaluated.values.max()) if evaluated is not None else None,
        base=run.last(HELD_BASE) if held is not None else (base if same is None else same),
        base_at_start=base,
        validation_base=same,
        steps_to_threshold=steps_to(evaluated, threshold),
        wall_s=wall.last if wall is not None else None,
        steps_per_s=_rate(wall.steps.astype(float), wall.values) if wall is not None else None,
        updates_per_s=_updates_rate(updates, wall),
    )


def _rate(amounts: Floats, seconds: Floats) -> float | None:
    """Growth per second between the first and the last point, from zero where there is but one."""
    if len(amounts) == 1:
        amounts, seconds = np.append(0.0, amounts), np.append(0.0, seconds)
    taken = float(seconds[-1] - seconds[0])
    return float(amounts[-1] - amounts[0]) / taken if taken > 0 else None


def _updates_rate(updates: Series | None, wall: Series | None) -> float | None:
    if updates is None or wall is None or updates.last <= 0:
        return None
    learning = updates.steps[updates.values > 0]
    before = updates.steps[updates.steps < learning[0]]
    start = before[-1] if len(before) else learning[0]
    shared, first, second = np.intersect1d(updates.steps, wall.steps, return_indices=True)
    since = shared >= start
    if not since.any():
        return None
    return _rate(updates.values[first][since], wall.values[second][since])


def curve_of(runs: list[Run], metric: str) -> Curve | None:
    """Mean of a rate over the seeds that have logged it, and its interval; None without any."""
    measured = [run for run in runs if metric in run.metrics]
    series = [run.metrics[metric] for run in measured]
    if not series:
        return None
    grid, values = on_grid(series)
    complete = int(np.isfinite(values).all(axis=0).sum())
    seeds = same_seed(measured)
    tasks = [measured[alike[0]].task for alike in seeds]
    values = np.array([known_mean(values[alike]) for alike in seeds])
    strata = [values[[t == task for t in tasks], :complete].T for task in dict.fromkeys(tasks)]
    interval = bootstrap_interval(strata, np.mean) if complete else None
    low, high = interval if interval is not None else (None, None)
    return Curve(grid, known_mean(values), complete, low, high, series)


def known_mean(values: Floats) -> Floats:
    """Mean of each column [R, T] over what is not NaN; NaN where nothing else is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def n_episodes(runs: list[RunSummary]) -> int | None:
    """Episodes of one evaluation while training, where all runs have the same number.

    By the setting: the number that was logged last may be of the base policy's held episodes.
    """
    validated = [run.run for run in runs if SUCCESS in run.run.metrics]
    given = [run.params.get(VALIDATION_STATES) or run.last(N_EPISODES) for run in validated]
    counts = {int(number) for number in given if number is not None}
    return counts.pop() if len(counts) == 1 else None
