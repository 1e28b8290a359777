"""`metrics.jsonl`: rows survive crashes and resumes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from pld_ray.config import ConfigError
from pld_ray.runs.journal import NON_FINITE, RESTART, TIME, Journal, read_history


def untimed(rows):
    return [{name: value for name, value in row.items() if name != TIME} for row in rows]


def test_rows_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = Journal(path)
    assert log.rows() == []
    log.append({"env_steps": np.int64(100), "q": np.float32(0.5), "alpha": torch.tensor(0.25)})
    log.append({"env_steps": 200, "q": math.nan, "phase": "train", "best": None, "done": True})
    expected = [
        {"env_steps": 100, "q": 0.5, "alpha": 0.25},
        {"env_steps": 200, "q": None, "phase": "train", "best": None, "done": True, NON_FINITE: 1},
    ]
    assert log.rows() == read_history(path)
    assert untimed(log.rows()) == expected
    times = [row[TIME] for row in log.rows()]
    assert times[0] < times[1]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_left_out_and_removed(tmp_path, cut):
    """The second line is longer; a line that lacks only its newline is whole."""
    path = tmp_path / "metrics.jsonl"
    log = Journal(path)
    rows = [{"env_steps": 1, "q": 0.5}, {"env_steps": 2, "q": 0.25}]
    for row in rows:
        log.append(row)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = rows if cut == 1 else rows[:1]
    assert untimed(read_history(path)) == kept
    Journal(path).append({"env_steps": 3})
    assert untimed(json.loads(line) for line in path.read_text().splitlines()) == [
        *kept,
        {"env_steps": 3},
    ]


def test_resume_drops_rows_beyond_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = Journal(path)
    for step in range(0, 1000, 100):
        log.append({"env_steps": step})
    resumed = Journal(path)
    resumed.restore(400)
    resumed.append({"env_steps": 450})
    assert [row["env_steps"] for row in resumed.rows()] == [0, 100, 200, 300, 400, 450]


def test_a_phase_without_environment_steps_goes_back_by_its_updates(tmp_path):
    log = Journal(tmp_path / "metrics.jsonl")
    for updates in (500, 1000, 1500):
        log.append({"env_steps": 0, "updates": updates})
        log.append({"env_steps": 0, "note": "beside it"})
    for _ in range(2):  # a second kill after the same checkpoint doubles nothing
        log.restore(0, updates=1000)
        log.append({"env_steps": 0, "updates": 1500})
    log.append({"env_steps": 200, "updates": 1500})
    log.restore(100, updates=2000)
    assert [row.get("updates") for row in log.rows()] == [500, None, 1000, None, 1500]


def test_the_initialisation_of_a_critic_goes_back_by_its_own_steps(tmp_path):
    """It stands at one environment step, and counts no updates."""
    log = Journal(tmp_path / "metrics.jsonl")
    log.append({"env_steps": 60, "updates": 0})
    for steps in (200, 400, 600):
        log.append({"env_steps": 60, "calql/steps": steps})
        log.append({"env_steps": 60, "updates": 0})
    log.restore(60, updates=0, calql_steps=400)
    assert [row.get("calql/steps") for row in log.rows()] == [None, 200, None, 400, None]
    log.append({"env_steps": 60, "calql/steps": 600})
    log.append({"env_steps": 90, "updates": 12})
    log.restore(90, updates=12, calql_steps=600)
    found = [row["calql/steps"] for row in log.rows() if "calql/steps" in row]
    assert found == [200, 400, 600]
    assert len(log.rows()) == 7


def test_what_a_restart_took_out_is_kept_in_the_order_in_which_it_was_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 0}\n')  # of a release that wrote no time
    log = Journal(path)
    for step in (10, 20, 30):
        log.append({"env_steps": step})
    before = path.read_bytes()
    log.restore(10)
    log.append({"env_steps": 25})
    again = Journal(path)
    again.append({"env_steps": 40})

    def steps():
        return [row.get("env_steps", RESTART) for row in again.everything()]

    assert steps() == [0, RESTART, 10, 20, 30, RESTART, 25, RESTART, 40]
    assert [row["env_steps"] for row in again.rows()] == [0, 10, 25, 40]
    path.write_bytes(before)  # as after a crash between the two files
    assert steps() == [0, RESTART, 10, 20, 30, RESTART, RESTART]
    again.restore(10)
    assert [row["env_steps"] for row in again.rows()] == [0, 10]


def test_a_broken_line_inside_is_named_and_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is no report"):
        Journal(path)
    assert path.read_text().count("\n") == 3


@pytest.mark.parametrize("line", ["{}", '{"env_steps": "many"}'])
def test_a_line_without_steps_is_a_user_s_error(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"env_steps": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is no report"):
        Journal(path).restore(1)


def test_bad_rows_are_refused(tmp_path):
    log = Journal(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="needs env_steps"):
        log.append({"q": 1.0})
    with pytest.raises(TypeError, match="'q' is a list"):
        log.append({"env_steps": 1, "q": [1.0]})
    assert not log.path.exists()
    with pytest.raises(FileNotFoundError, match="no such metrics file"):
        read_history(log.path)
