"""What a sweep says while it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pld_ray.sweep.progress import SweepProgress


def trial(name, status="RUNNING", steps=None):
    return SimpleNamespace(
        trial_id=name, status=status, last_result=None if steps is None else {"env_steps": steps}
    )


def test_time_left_is_what_the_steps_to_come_take_at_the_rate_so_far():
    progress = SweepProgress(num_trials=5, metric="best_success", trial_steps=1000)
    assert progress.time_left_s(10.0) is None
    resumed, fresh, done = trial("a", steps=200), trial("b"), trial("c")
    trials = [resumed, fresh, done]
    for each in trials:
        progress.on_trial_start(0, trials, each)
    for each, steps in ((resumed, 600), (fresh, 300), (done, 500)):
        progress.on_trial_result(0, trials, each, {"env_steps": steps})
    done.status = "TERMINATED"
    progress.on_trial_complete(0, trials, done)
    # made: 400 + 300 + 500; to come: 400 + 700 of the open two, and two trials of 1000
    assert progress.time_left_s(120.0) == pytest.approx(120.0 * 3100 / 1200)
    for each in (resumed, fresh):
        each.status = "TERMINATED"
        progress.on_trial_complete(0, trials, each)
    progress.num_trials = 3
    assert progress.time_left_s(120.0) == 0.0
