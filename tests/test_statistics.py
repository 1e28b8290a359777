import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pld_ray.statistics import bootstrap_interval, iqm, wilson_interval

scores = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))


@given(scores)
def test_the_iqm_is_the_mean_without_the_outer_quarters(values):
    cut = len(values) // 4
    assert iqm(values) == pytest.approx(np.sort(values)[cut : len(values) - cut].mean())


@given(scores)
def test_the_iqm_lies_among_the_scores(values):
    assert values.min() - 1e-12 <= iqm(values) <= values.max() + 1e-12


def test_the_iqm_of_no_scores_is_refused():
    with pytest.raises(ValueError, match="no scores"):
        iqm(np.array([]))


@pytest.mark.parametrize("statistic", [iqm, np.mean])
def test_the_interval_holds_the_middle_of_the_resampled_statistics(statistic):
    values = np.random.default_rng(1).beta(6, 2, 25)
    interval = bootstrap_interval([values], statistic, resamples=20_000)
    drawn = values[np.random.default_rng(2).integers(25, size=(20_000, 25))]
    expected = np.percentile(statistic(drawn, axis=1), [2.5, 97.5])
    assert interval == pytest.approx(tuple(expected), abs=0.004)


def test_the_interval_of_strata_is_narrower_than_that_of_their_mixture():
    easy, hard = np.full(10, 0.9) + np.arange(10) / 1000, np.full(10, 0.1) + np.arange(10) / 1000
    low, high = bootstrap_interval([easy, hard], np.mean)
    mixed_low, mixed_high = bootstrap_interval([np.concatenate([easy, hard])], np.mean)
    assert high - low < 0.01 < mixed_high - mixed_low


def test_a_curve_is_resampled_by_run():
    runs = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]])  # (steps, runs): every run has the mean 0.5
    low, high = bootstrap_interval([runs], lambda x, axis: x.mean(axis=axis).mean(axis=0))
    assert (low, high) == (0.5, 0.5)


@pytest.mark.parametrize("runs", [[], [0.5], [0.5, 0.9]])
def test_fewer_than_three_runs_have_no_interval(runs):
    assert bootstrap_interval([np.array(runs)] if runs else []) is None


def test_the_interval_is_the_same_every_time():
    values = [np.array([0.1, 0.4, 0.9, 0.6])]
    assert bootstrap_interval(values) == bootstrap_interval(values)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (20, 20, 0.8389, 1)],
)
def test_wilson_interval(successes, n, low, high):
    """Values of Newcombe 1998, table I, and of the closed form at 0 and n."""
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-4)


def test_wilson_interval_at_its_edges():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes=3"):
        wilson_interval(3, 2)


def test_wilson_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    intervals = np.array([wilson_interval(successes, 40) for successes in range(41)])
    for p in (0.5, 0.9):
        low, high = intervals[rng.binomial(40, p, size=4000)].T
        hits = (low <= p) & (p <= high)
        assert 0.92 < np.mean(hits) < 0.98


def test_a_rate_times_its_episodes_is_the_number_of_successes():
    assert 0.57 * 100 < 57
    assert wilson_interval(0.57 * 100, 100) == wilson_interval(57, 100)
    with pytest.raises(ValueError, match="n=0"):
        wilson_interval(1, 0)


def test_every_task_needs_three_runs():
    assert bootstrap_interval([np.linspace(0, 1, 9), np.array([0.5, 0.9])]) is None
    assert bootstrap_interval([np.array([0.1, 0.5, 0.9])]) is not None
