"""What a sweep's MLflow run says of the setting that is ahead."""

from __future__ import annotations

import pytest

from pld_ray.sweep import publish as publishing
from pld_ray.sweep.publish import held_settings, note, publish

COUNTS = {"num_finished": 6, "num_trials": 9, "num_stopped_early": 3, "num_failed": 0}


def point(name, iqm, low=None, high=None):
    return {
        "point": name,
        "iqm_success": iqm,
        "ci95_low": low,
        "ci95_high": high,
        "n_seeds": 3,
        "base_success": 0.5,
    }


def report_of(points, on_validation=(), separation=""):
    trials = [
        {
            "point": row["point"],
            "final_success": row["iqm_success"],
            "final_on": "validation" if row["point"] in on_validation else "held",
        }
        for row in points
    ]
    return {"files": [], "points": points, "trials": trials, "separation": separation}


STOPPED = point("a=1", 1.0, 1.0, 1.0)
"""Ahead of all others, on the validation states, and told from each of them."""


@pytest.mark.parametrize(
    ("rest", "crown", "doubt"),
    [
        ([(0.7, 0.5, 0.9), (0.7, 0.52, 0.88)], "Highest", "not separable from the other one"),
        ([(0.9, 0.8, 1.0), (0.7, 0.6, 0.85), (0.1, 0.0, 0.2)], "Highest", "from 1 of 2 others"),
        ([(0.9, 0.8, 1.0), (0.1, 0.0, 0.2)], "Best", ""),
        ([(0.9,), (0.1,)], "Highest", "not separable from the other one"),
        ([(0.9, 0.8, 1.0)], "Result", ""),
    ],
)
def test_the_setting_ahead_on_the_held_states_is_compared_with_those_that_got_there(
    monkeypatch, tmp_path, rest, crown, doubt
):
    points = [STOPPED, *(point(f"a={i}", *row) for i, row in enumerate(rest, start=2))]
    made = report_of(points, on_validation={"a=1"}, separation="" if doubt else "of another one")
    held = held_settings(made)
    assert [row["point"] for row in held] == [row["point"] for row in points[1:]]
    text = note(held, COUNTS)
    assert f"**{crown}: a=2, " in text
    assert doubt in text
    assert ("not separable" in text) == bool(doubt)

    tracker = Tracker()
    monkeypatch.setattr(publishing, "report", lambda folder, uri: made)
    publish(tracker, tmp_path, {"state": "finished", **COUNTS}, 9)
    assert tracker.tags["best_setting"] == "a=2"
    assert tracker.tags["separation"].endswith(doubt)
    assert bool(tracker.tags["separation"]) == bool(doubt)
    assert tracker.tags["mlflow.note.content"] == text


def test_a_sweep_none_of_whose_settings_got_to_the_held_states_says_so(monkeypatch, tmp_path):
    made = report_of([STOPPED], on_validation={"a=1"})
    tracker = Tracker()
    monkeypatch.setattr(publishing, "report", lambda folder, uri: made)
    publish(tracker, tmp_path, {"state": "finished", **COUNTS}, 9)
    assert (tracker.tags["best_setting"], tracker.tags["separation"]) == ("", "")
    assert "No setting has been evaluated on the held states" in tracker.tags["mlflow.note.content"]


class Tracker:
    """As much of an MLflow run as is written to."""

    tracking_uri = ""

    def __init__(self):
        self.tags = {}

    def set_tags(self, tags):
        self.tags |= tags

    def log_metrics(self, metrics, step):
        pass

    def log_artifact(self, path, folder=None):
        pass
