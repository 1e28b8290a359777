"""What a restart leaves out."""

from __future__ import annotations

from pld_ray.tracking.ledger import Ledger


def test_everything_passes_before_a_restart():
    ledger = Ledger()
    assert ledger.new_points({"a": 1.0}, 10) == {"a": 1.0}
    assert ledger.new_points({"a": 2.0}, 10) == {"a": 2.0}
    assert ledger.new_points({"a": 3.0}, 5) == {"a": 3.0}  # an evaluation may end late


def test_after_a_restart_each_metric_passes_beyond_what_it_had_reached():
    ledger = Ledger()
    ledger.new_points({"loss": 1.0, "eval": 0.5}, 10)
    ledger.new_points({"loss": 1.0}, 20)
    ledger.restart()
    assert ledger.new_points({"loss": 2.0, "eval": 0.6}, 10) == {}
    assert ledger.new_points({"loss": 2.0, "eval": 0.6}, 15) == {"eval": 0.6}
    assert ledger.new_points({"loss": 2.0, "new": 1.0}, 20) == {"new": 1.0}
    assert ledger.new_points({"loss": 2.0}, 21) == {"loss": 2.0}


def test_several_points_at_one_step_are_counted():
    ledger = Ledger()
    for value in (1.0, 2.0):
        ledger.new_points({"calql": value}, 0)
    ledger = Ledger(ledger.points)
    ledger.restart()
    passed = [ledger.new_points({"calql": value}, 0) for value in (1.0, 2.0, 3.0)]
    assert passed == [{}, {}, {"calql": 3.0}]


def test_a_second_restart_counts_from_all_that_was_logged():
    ledger = Ledger()
    ledger.new_points({"loss": 1.0}, 10)
    ledger.restart()
    ledger.new_points({"loss": 1.0}, 30)
    ledger.restart()
    assert ledger.new_points({"loss": 1.0}, 20) == {}
    assert ledger.new_points({"loss": 1.0}, 40) == {"loss": 1.0}
