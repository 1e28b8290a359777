"""What few episodes and few seeds can say: rates, interquartile means and their intervals.

The conventions are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (rliable): the interquartile mean of all runs, and 95 % percentile intervals
of a bootstrap that resamples seeds within each task. scipy takes seconds to import: only who
computes waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_SEEDS = 3
"""With fewer, no interval is claimed."""
RESAMPLES = 2_000


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of a success probability (Wilson 1927, J. Am. Stat. Assoc. 22).

    Args:
        successes: in [0, n], a whole number but for the rounding of a rate.
        n: episodes; without any, nothing is known and the interval is (0, 1).

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: `successes` is outside [0, n].
    """
    from scipy.stats import binomtest

    if n == 0 and successes == 0:
        return 0.0, 1.0
    if not 0 <= successes <= n:
        raise ValueError(f"wilson_interval: successes={successes} must lie in [0, n={n}]")
    interval = binomtest(round(successes), n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def iqm(scores: Floats, axis: int = -1) -> Floats:
    """Interquartile mean: the mean without the lowest and the highest quarter.

    The number cut at either end is rounded down, so up to three scores are all kept and the IQM is
    their mean.

    Raises:
        ValueError: there are no scores.
    """
    from scipy.stats import trim_mean

    if np.shape(scores)[axis] == 0:
        raise ValueError("the interquartile mean of no scores does not exist")
    trimmed: Floats = trim_mean(scores, 0.25, axis=axis)
    return trimmed


def bootstrap_interval(
    strata: Sequence[Floats],
    statistic: Callable[..., Floats] = iqm,
    *,
    resamples: int = RESAMPLES,
) -> tuple[Floats, Floats] | None:
    """95 % percentile interval of a statistic, with runs resampled within each stratum (task).

    Args:
        strata: for each task an array (..., runs), the same leading shape in each; a leading axis,
            such as evaluation steps, is resampled with its run.
        statistic: called as `statistic(scores, axis=-1)`, all runs on the last axis.

    Returns:
        Low and high end, of the leading shape; None with fewer than `MIN_SEEDS` runs in a stratum.
    """
    if not strata or min(np.shape(runs)[-1] for runs in strata) < MIN_SEEDS:
        return None
    from scipy.stats import bootstrap

    def of_all(*resampled: Floats, axis: int = -1) -> Floats:
        return statistic(np.concatenate(resampled, axis=axis), axis=axis)

    interval = bootstrap(
        strata,
        of_all,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        axis=-1,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return interval.low, interval.high
