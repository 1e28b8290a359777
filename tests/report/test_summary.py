"""A report's results from the runs' figures: intervals, bases, thresholds, times."""

from __future__ import annotations

import pytest

from pld_ray.report.inputs import Selection
from pld_ray.report.runs import Run
from pld_ray.report.series import Series
from pld_ray.report.summary import n_episodes, summarize, summarize_run


def run_of(number, curve, *, utd=1, task="lift", status="FINISHED", params=None, **latest):
    """A run without a store; `latest` are metrics of `eval/`."""
    return Run(
        f"{number}",
        f"run {number}",
        status,
        start_ms=None,
        artifact_uri="",
        params=params or {},
        tags={"task": task, "seed": f"{number}", "point": f"utd={utd}"},
        metrics={"eval/residual_success": Series.of(curve)},
        latest={f"eval/{name}": value for name, value in latest.items()},
    )


def test_runs_are_resampled_within_their_tasks():
    rates = [0.9] * 3 + [0.1] * 3
    runs = [
        run_of(i, [(1_000, rate)], task=f"task {rate}", held_residual_success=rate)
        for i, rate in enumerate(rates)
    ]
    (point,) = summarize(Selection(runs, [], [])).points
    assert (point.low, point.iqm, point.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (point.curve.low, point.curve.high) == (pytest.approx([0.5]), pytest.approx([0.5]))


def test_a_curve_is_the_mean_over_seeds_with_the_interval_of_a_mean():
    runs = [run_of(i, [(1_000, rate)]) for i, rate in enumerate([1.0, 0.0, 0.0, 0.0])]
    (point,) = summarize(Selection(runs, [], [])).points
    assert point.curve.mean == [0.25]
    # three or four draws of the one success: 5 % of all resamples; four: 0.4 %
    assert (point.curve.low, point.curve.high) == ([0.0], [0.75])
    runs.append(run_of(4, [(1_000, 0.6)]))
    runs[-1].tags["seed"] = "0"
    (point,) = summarize(Selection(runs, [], [])).points
    assert point.curve.mean == pytest.approx([0.8 / 4])


def test_settings_of_one_iqm_are_ranked_by_their_means():
    finals = {0: [0.5, 0.5, 0.5, 0.1], 1: [0.5, 0.5, 0.5, 0.9], 2: [0.5, 0.5, 0.5, 0.5]}
    runs = [
        run_of(f"{utd} {i}", [(1_000, final)], utd=utd)
        for utd, values in finals.items()
        for i, final in enumerate(values)
    ]
    points = summarize(Selection(runs, [], [])).points
    assert [point.iqm for point in points] == [0.5] * 3
    assert [point.point.values["utd"] for point in points] == ["1", "2", "0"]


@pytest.mark.parametrize(("at_their_end", "compared"), [(6, 6), (5, 7)])
def test_six_settings_at_their_end_are_compared_without_the_stopped_ones(at_their_end, compared):
    held = {"held_residual_success": 0.5}
    runs = [
        run_of(i, [(1_000, i / 10)], utd=i, **(held if i < at_their_end else {})) for i in range(7)
    ]
    assert summarize(Selection(runs, [], [])).importance.n_runs == compared


def test_the_base_policy_is_that_on_the_states_of_the_final_success():
    ended = run_of(0, [(1_000, 0.5)], held_residual_success=0.8, held_base_success=0.7)
    stopped = run_of(1, [(1_000, 0.5)], base_success=0.4)
    summary = summarize(Selection([ended, stopped], [], []))
    assert (summary.final_on, summary.base, summary.points[0].base) == ("mixed", 0.7, 0.7)


@pytest.mark.parametrize(
    ("bases", "agreed"),
    [((0.5, 0.51, 0.515), 0.51), ((0.5, 0.52, 0.52), 0.52), ((0.5, 0.51, 0.53), None)],
)
def test_runs_agree_on_the_base_policy_within_two_points(bases, agreed):
    held = [{"held_residual_success": 0.8, "held_base_success": base} for base in bases]
    runs = [run_of(i, [(1_000, 0.5)], **values) for i, values in enumerate(held)]
    assert summarize(Selection(runs, [], [])).base == agreed


def test_updates_are_timed_from_the_report_before_the_first_one():
    run = run_of(0, [(1_000, 0.5)])
    run.metrics["time/wall_s"] = Series.of([(100, 1.0), (200, 2.0), (300, 4.0)])
    run.metrics["updates"] = Series.of([(100, 0.0), (200, 50.0), (300, 120.0)])
    assert summarize_run(run, 0.8).updates_per_s == pytest.approx(120 / 3)
    run.metrics["time/wall_s"] = Series.of([(500, 10.0)])
    assert summarize_run(run, 0.8).steps_per_s == pytest.approx(50)


def test_a_setting_missed_the_threshold_by_what_its_shortest_whole_run_saw():
    curves = {"FINISHED": 20_000, "RUNNING": 10_000, "KILLED": 5_000, "FAILED": 5_000}
    runs = [
        run_of(i, [(1_000, 0.5), (steps, 0.7)], status=status)
        for i, (status, steps) in enumerate(curves.items())
    ]
    (point,) = summarize(Selection(runs, [], [])).points
    assert [run.missed_by for run in point.runs] == [20_000, 10_000, None, None]
    assert point.missed_by == 10_000


@pytest.mark.parametrize(("settings", "said"), [((50, 50), 50), ((50, 100), None), ((), 20)])
def test_episodes_of_an_evaluation_are_those_of_its_setting_where_all_have_one(settings, said):
    params = [{"evaluation.validation_states": f"{n}"} for n in settings] or [{}]
    runs = [run_of(i, [(1_000, 0.5)], params=p, n_episodes=20.0) for i, p in enumerate(params)]
    assert n_episodes([summarize_run(run, 0.8) for run in runs]) == said
