import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.report.series import Series, on_grid, steps_for_half, steps_to


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
