"""A search that is resumed: every draw that was made keeps its trials, those that are alike too."""

from __future__ import annotations

import types

import pytest
import yaml

from pld_ray.runs.layout import TRIALS, trial_folder
from pld_ray.sweep import plan
from pld_ray.sweep.config import load_sweep
from pld_ray.sweep.ended import (
    REPORTED,
    drawn_points,
    ended_figures,
    known_points,
    note_ended,
    write_trial,
)
from pld_ray.sweep.folder import TrialName
from pld_ray.sweep.outcome import summarize, trial_rows

SPACE = {"algorithm.utd": {"choice": [0.5, 1.0, 2.0]}}


@pytest.fixture
def search(tmp_path):
    """Three values and six draws: some are alike."""

    def load(seeds):
        file = tmp_path / "search.yaml"
        content = {"searcher": "optuna", "space": SPACE, "num_samples": 6, "seeds": seeds}
        file.write_text(yaml.safe_dump(content))
        return load_sweep([str(file)])

    return load


def live(sweep, folder, killed_in=None):
    """What Tune does, one trial at a time: suggest, name, train, tell. Returns what was trained.

    Args:
        killed_in: number of the trained trial in the middle of which it ends; None: at its end.
    """
    trials = folder / TRIALS
    searcher = plan.searcher(sweep.config, drawn_points(trials))
    space = plan.param_space(sweep, known_points(trials))
    searcher.set_search_properties(sweep.config.metric, "max", space)
    name, trained = TrialName(folder), []
    for number in range(plan.num_trials(sweep)):
        config = searcher.suggest(f"x{number}")
        trial = name(types.SimpleNamespace(config=config))
        path = trial_folder(folder, trial)
        path.mkdir(parents=True, exist_ok=True)
        if ended_figures(path) is None:
            trained.append(trial)
            write_trial(path, point=config["point"], index=config.get("__trial_index__"))
            if len(trained) == killed_in:
                break
            note_ended(path, {REPORTED: 0.5, "env_steps": 1000})
        searcher.on_trial_complete(f"x{number}", {REPORTED: 0.5, "training_iteration": 1})
    return trained


@pytest.mark.parametrize("seeds", [[0], [0, 1]], ids=["one seed", "two seeds"])
def test_draws_that_are_alike_are_trained_once_each_however_often_it_is_resumed(
    search, seeds, tmp_path
):
    sweep, folder = search(seeds), tmp_path / "sweep"
    everything = [f"t{i:04d}" for i in range(6 * len(seeds))]
    assert live(sweep, folder, killed_in=2) == everything[:2]
    assert live(sweep, folder, killed_in=4) == everything[1:5]
    drawn = drawn_points(folder / TRIALS)
    assert len({str(point) for point in drawn}) < len(drawn) == -(-5 // len(seeds))
    assert live(sweep, folder) == everything[4:]
    assert live(sweep, folder) == []
    rows = trial_rows(folder, [])
    assert [row["trial"] for row in rows] == everything
    summary = summarize(rows, plan.num_trials(sweep))
    assert (summary["state"], summary["num_open"]) == ("finished", 0)


def test_a_draw_counts_by_any_of_its_trials(tmp_path):
    a, b = {"algorithm.utd": 1.0}, {"algorithm.utd": 2.0}
    begun = [
        (a, 0),
        (a, 1),
        (b, 1),
        (a, 0),
        (b, 0),
    ]
    for number, (point, index) in enumerate(begun):
        path = tmp_path / f"t{number:04d}"
        path.mkdir()
        write_trial(path, point=point, index=index)
    assert drawn_points(tmp_path) == [a, b, a]


def test_a_trial_whose_folder_was_removed_gives_its_name_to_no_other(tmp_path):
    for number in (0, 3):
        path = trial_folder(tmp_path, f"t{number:04d}")
        path.mkdir(parents=True)
        write_trial(path, point={"algorithm.utd": number}, index=0)
    trial_folder(tmp_path, "t0009 (failed)").mkdir()  # set aside by hand
    name = TrialName(tmp_path)
    drawn = [types.SimpleNamespace(config={"point": {"algorithm.utd": n}}) for n in (7, 3, 8)]
    assert [name(trial) for trial in drawn] == ["t0004", "t0003", "t0005"]
