"""What a restart leaves out."""

from __future__ import annotations

from pld_ray.tracking.ledger import Ledger


def log(ledger: Ledger, values: dict[str, float], step: int) -> dict[str, float]:
    new = ledger.new_points(values, step)
    ledger.note({"kind": "metrics", "step": step, "values": new})
    return new


def test_everything_passes_before_a_restore():
    ledger = Ledger()
    assert log(ledger, {"a": 1.0}, 10) == {"a": 1.0}
    assert log(ledger, {"a": 2.0}, 10) == {"a": 2.0}
    assert log(ledger, {"a": 3.0}, 5) == {"a": 3.0}  # an evaluation may end late


def test_after_a_restore_each_metric_passes_beyond_what_it_had_reached():
    ledger = Ledger()
    log(ledger, {"loss": 1.0, "eval": 0.5}, 10)
    log(ledger, {"loss": 1.0}, 20)
    ledger.restore()
    assert log(ledger, {"loss": 2.0, "eval": 0.6}, 10) == {}
    assert log(ledger, {"loss": 2.0, "eval": 0.6}, 15) == {"eval": 0.6}
    assert log(ledger, {"loss": 2.0, "new": 1.0}, 20) == {"new": 1.0}
    assert log(ledger, {"loss": 2.0}, 21) == {"loss": 2.0}


def test_several_points_at_one_step_are_counted():
    ledger = Ledger()
    for value in (1.0, 2.0):
        log(ledger, {"calql": value}, 0)
    ledger = Ledger(ledger.state_dict())
    ledger.restore()
    passed = [log(ledger, {"calql": value}, 0) for value in (1.0, 2.0, 3.0)]
    assert passed == [{}, {}, {"calql": 3.0}]


def test_a_second_restore_counts_from_all_that_was_logged():
    ledger = Ledger()
    log(ledger, {"loss": 1.0}, 10)
    ledger.restore()
    log(ledger, {"loss": 1.0}, 30)
    ledger.restore()
    assert log(ledger, {"loss": 1.0}, 20) == {}
    assert log(ledger, {"loss": 1.0}, 40) == {"loss": 1.0}
