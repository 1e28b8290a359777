"""What a sweep says while it runs."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial

from pld_ray.config import TrainConfig
from pld_ray.files.lock import FolderLock
from pld_ray.runs.layout import ENDED_FILE, SUMMARY_FILE, TRIALS, trial_folder
from pld_ray.runs.status import FAILED, RUNNING, write_status
from pld_ray.sweep import progress as progress_module
from pld_ray.sweep import run as sweep_run
from pld_ray.sweep.config import Sweep, SweepConfig
from pld_ray.sweep.ended import (
    REPORTED,
    ended_figures,
    known_names,
    known_points,
    note_ended,
    point_key,
    write_trial,
)
from pld_ray.sweep.outcome import ENDED, as_csv, state_of, summarize, trial_row
from pld_ray.sweep.progress import SweepProgress


def trial(name, status="RUNNING", steps=None):
    return SimpleNamespace(
        trial_id=name, status=status, last_result=None if steps is None else {"env_steps": steps}
    )


def test_time_left_is_what_the_steps_to_come_take_at_the_rate_so_far():
    progress = SweepProgress(num_trials=5, metric="best_success", trial_steps=1000, folder="none")
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


def test_a_trial_is_counted_as_what_it_has_just_become(capsys):
    """Tune calls first, and sets the trial's status then."""
    progress = SweepProgress(2, "best_success", 1000, "none")
    it = trial("it", status="PENDING", steps=5)
    progress.on_trial_start(0, [it], it)
    it.status = "RUNNING"
    progress.on_trial_complete(0, [it], it)
    said = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["[sweep] 0/2 trials, 1 running", "[sweep] 1/2 trials, 0 running"]


def test_a_trial_that_waits_says_so_once_on_the_console_of_the_sweep(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress_module, "INTERVAL_S", 0.0)
    progress = SweepProgress(1, "best_success", 1000, str(tmp_path))
    it, other = (
        Trial("trial", stub=True, trial_name_creator=lambda trial, name=name: name)
        for name in ("waits", "runs")
    )
    lock = FolderLock(trial_folder(tmp_path, "waits"))
    lock.path.parent.mkdir(parents=True, exist_ok=True)
    assert lock.claim() is None
    try:
        for reason in ("waiting for its store: away", "waiting for its store: away", "", "again"):
            write_status(trial_folder(tmp_path, "waits"), RUNNING, reason)
            progress.on_step_end(0, [it, other])
        write_status(trial_folder(tmp_path, "waits"), FAILED, "refused")  # said when it has died
        progress.on_step_end(0, [it, other])
    finally:
        lock.release()
    said = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["waits is waiting for its store: away", "waits is again"]


@pytest.mark.parametrize(
    ("error", "begun", "said"),
    [
        (RuntimeError("gone"), True, ["cut off", "failed"]),
        (RuntimeError("gone"), False, ["cut off"]),
        (KeyboardInterrupt(), True, ["cut off"]),
    ],
)
def test_a_sweep_says_at_once_and_at_its_end_how_to_go_on(
    error, begun, said, tmp_path, capsys, monkeypatch
):
    """Where Ray's head goes away, Ray ends the process itself."""
    folder, ends = tmp_path / "a sweep", []
    (folder / TRIALS / ("t0000" if begun else "")).mkdir(parents=True)
    driver = sweep_run._Driver.__new__(sweep_run._Driver)
    driver.sweep = Sweep(SweepConfig(space={"seed": {"grid": [0]}}), TrainConfig(), "default")
    driver.folder, driver.resumed, driver.logger = folder, False, logging.getLogger("a sweep")
    driver.lock = FolderLock(folder)
    driver.tracker = SimpleNamespace(finish=ends.append, discard=lambda: ends.append("discarded"))

    def fit(self):
        raise error

    monkeypatch.setattr(sweep_run._Driver, "_fit", fit)
    with pytest.raises(type(error)) as ended:
        driver.run()
    again = f"continue with: pld-ray sweep --resume='{folder}'"
    told = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[sweep] ") and line.endswith(again) for line in told)
    assert [word for line in told for word in ("cut off", "failed") if word in line] == said
    killed = isinstance(error, KeyboardInterrupt)
    assert str(ended.value) == (f"interrupted; {again}" if killed else "gone")
    assert ends == ["discarded" if not begun else "KILLED" if killed else "FAILED"]


# --- what it came to ------------------------------------------------------------------------------


def ended(folder, **figures):
    folder.mkdir(parents=True, exist_ok=True)
    note_ended(folder, {REPORTED: 0.5, **figures})


def result(folder, error=None, config=None, **metrics):
    return SimpleNamespace(path=str(folder), error=error, config=config, metrics=metrics)


def test_the_figures_of_a_trial_that_has_reported_are_kept_and_nothing_else(tmp_path):
    note_ended(tmp_path / "gone", {REPORTED: 0.5})
    assert not (tmp_path / "gone").exists()
    note_ended(tmp_path, {"env_steps": 5})  # nothing that a scheduler asks for
    note_ended(tmp_path, None)
    assert not (tmp_path / ENDED_FILE).exists()
    ended(tmp_path, done=True, trial="t0", wall_s=float("nan"), env_steps=7)
    assert ended_figures(tmp_path) == {REPORTED: 0.5, "env_steps": 7}
    (tmp_path / ENDED_FILE).write_text('{"env_steps": 7}')
    assert ended_figures(tmp_path) is None


def test_repetitions_of_a_point_are_told_apart(tmp_path):
    point = {"algorithm.utd": 2, "seed": 1}
    for name, entries in (
        ("t0000", {"point": point}),
        ("t0001", {"point": point, "index": 1}),
        ("t0002", {"point": "utd=2"}),
        ("other", {"point": {}}),
    ):
        (tmp_path / name).mkdir()
        write_trial(tmp_path / name, **entries)
    write_trial(tmp_path / "t0001", checkpoint="step_1")  # what was there stays
    assert known_points(tmp_path) == {"t0000": point, "t0001": point}
    names = {point_key(point, 0): ["t0000"], point_key(point, 1): ["t0001"]}
    assert len(names) == 2
    assert known_names(tmp_path) == names
    assert point_key({"seed": 1, "algorithm.utd": 2}, None) == point_key(point, 0)


def test_how_a_trial_ended_is_read_from_its_folder(tmp_path):
    open_one, stopped, finished = (tmp_path / TRIALS / f"t000{k}" for k in range(3))
    open_one.mkdir(parents=True)
    ended(stopped)
    ended(finished)
    (finished / SUMMARY_FILE).write_text("{}")
    folders = (open_one, stopped, finished)
    states = [state_of(folder, result(folder)) for folder in folders]
    assert states == ["open", "stopped early", "finished"]
    assert state_of(open_one, result(open_one, done=True)) == "stopped early"
    assert state_of(finished, result(finished, RuntimeError("gone"))) == "failed"


def test_a_row_has_the_trial_s_point_its_last_figures_and_why_it_failed(tmp_path):
    folder = tmp_path / TRIALS / "t0003"
    ended(folder)
    point = {"id": 8, "algorithm.utd": 2, "seed": 5}
    gone = ValueError("first\n\nlast")
    given = result(folder, gone, {"point": point}, best_success=0.75, env_steps=90)
    row = trial_row(tmp_path, given)
    assert row["failure"] == "ValueError: last"
    assert (row["trial"], row["state"], row["seed"]) == ("t0003", "failed", 5)
    assert row["point"] == "algorithm.utd=2"
    assert (row["best_success"], row["env_steps"], row["held_success"]) == (0.75, 90, None)
    write_status(folder, "failed", "RunError: the disk is full")
    assert trial_row(tmp_path, given)["failure"] == "RunError: the disk is full"
    assert trial_row(tmp_path, result(folder, done=True))["failure"] == ""


def test_the_best_trial_and_what_is_left_are_told():
    rows = [
        {"state": state, "best_success": best}
        for state, best in zip([*ENDED, "open"], (0.0, 0.75, None, 0.5), strict=True)
    ]
    summary = summarize(rows, 6)
    assert summary == {
        "state": "interrupted",
        "num_trials": 6,
        "num_open": 3,
        "best": rows[1],
        "num_finished": 1,
        "num_stopped_early": 1,
        "num_failed": 1,
    }
    assert summarize(rows, 6, over=True)["state"] == "finished"
    assert summarize(rows[:3], 3)["state"] == "finished"
    more = summarize(rows[:3], 2)  # of a resume that began trials anew
    assert (more["state"], more["num_open"]) == ("finished", 0)
    assert summarize([], 2)["best"] is None
    assert as_csv([]).split() == ["trial"]
