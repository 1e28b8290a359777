import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pld_ray.report.runs import Series
from pld_ray.report.statistics import (
    average_ranks,
    bootstrap_interval,
    iqm,
    mean,
    on_grid,
    rank_correlation,
    steps_for_half,
    steps_to,
)

scores = arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1))


@given(scores)
def test_the_iqm_is_scipys_trimmed_mean(values):
    assert iqm(values) == pytest.approx(scipy.stats.trim_mean(values, 0.25))


@given(scores)
def test_the_iqm_lies_among_the_scores(values):
    assert values.min() - 1e-12 <= iqm(values) <= values.max() + 1e-12


def test_the_iqm_of_no_scores_is_refused():
    with pytest.raises(ValueError, match="no scores"):
        iqm(np.array([]))


@pytest.mark.parametrize(("ours", "theirs"), [(iqm, lambda x, axis: iqm(x, axis)), (mean, np.mean)])
def test_the_interval_agrees_with_scipys_percentile_bootstrap(ours, theirs):
    values = np.random.default_rng(1).beta(6, 2, 25)
    low, high = bootstrap_interval([values], ours, resamples=20_000)
    reference = scipy.stats.bootstrap(
        (values,), theirs, method="percentile", n_resamples=20_000, rng=2, vectorized=True
    ).confidence_interval
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=0.004)


def test_the_interval_of_strata_is_narrower_than_that_of_their_mixture():
    easy, hard = np.full(10, 0.9) + np.arange(10) / 1000, np.full(10, 0.1) + np.arange(10) / 1000
    low, high = bootstrap_interval([easy, hard], mean)
    mixed_low, mixed_high = bootstrap_interval([np.concatenate([easy, hard])], mean)
    assert high - low < 0.01 < mixed_high - mixed_low


def test_a_curve_is_resampled_by_run():
    runs = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])  # every run has the mean 0.5
    low, high = bootstrap_interval([runs], lambda x, axis: x.mean(axis=axis).mean(axis=-1))
    assert (low, high) == (0.5, 0.5)


@pytest.mark.parametrize("runs", [[], [0.5], [0.5, 0.9]])
def test_fewer_than_three_runs_have_no_interval(runs):
    assert bootstrap_interval([np.array(runs)] if runs else []) is None


def test_the_interval_is_the_same_every_time():
    values = [np.array([0.1, 0.4, 0.9, 0.6])]
    assert bootstrap_interval(values) == bootstrap_interval(values)


def series(*points):
    return Series.of(list(points))


def test_the_first_evaluation_at_the_threshold_counts():
    curve = series((1000, 0.5), (2000, 0.8), (3000, 0.7), (4000, 0.9))
    assert steps_to(curve, 0.8) == 2000
    assert math.isinf(steps_to(curve, 0.95))
    assert math.isinf(steps_to(None, 0.8))


@given(st.lists(st.one_of(st.integers(0, 100), st.just(math.inf)), min_size=1))
def test_half_of_the_runs_had_reached_the_threshold_by_then_and_not_before(steps):
    by = steps_for_half(steps)
    assert 2 * sum(s <= by for s in steps) >= len(steps)
    assert 2 * sum(s < by for s in steps) < len(steps)


def test_equal_steps_are_the_grid_and_a_run_that_ended_leaves_a_gap():
    grid, values = on_grid([series((10, 0.1), (20, 0.2), (30, 0.3)), series((10, 0.5), (20, 0.6))])
    assert grid.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(values, [[0.1, 0.2, 0.3], [0.5, 0.6, np.nan]])


def test_unequal_steps_are_interpolated_where_all_runs_have_begun():
    first = series(*((s, s / 1000) for s in range(100, 1001, 100)))
    second = series(*((s, s / 1000) for s in range(130, 1001, 95)))
    grid, values = on_grid([first, second])
    assert grid[0] == 130
    assert 8 <= len(grid) <= 12
    inside = np.isfinite(values)
    np.testing.assert_allclose(values[inside], np.broadcast_to(grid / 1000, values.shape)[inside])


def test_the_newest_value_of_a_step_counts():
    repeated = series((10, 0.1), (20, 0.2), (10, 0.3))
    assert repeated.steps.tolist() == [10, 20]
    assert repeated.values.tolist() == [0.3, 0.2]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_ranks_and_their_correlation_are_scipys(pairs):
    x, y = zip(*pairs, strict=True)
    np.testing.assert_allclose(average_ranks(x) + 1, scipy.stats.rankdata(x))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert rank_correlation(x, y) is None
    else:
        assert rank_correlation(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
