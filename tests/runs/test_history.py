"""`metrics.jsonl`: rows survive crashes and resumes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from pld_ray.runs.history import MetricsHistory, read_history


def test_rows_come_back(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsHistory(path)
    assert log.rows() == []
    log.append({"env_steps": np.int64(100), "q": np.float32(0.5), "alpha": torch.tensor(0.25)})
    log.append({"env_steps": 200, "q": math.nan, "phase": "train", "best": None, "done": True})
    expected = [
        {"env_steps": 100, "q": 0.5, "alpha": 0.25},
        {"env_steps": 200, "q": None, "phase": "train", "best": None, "done": True},
    ]
    assert log.rows() == read_history(path) == expected


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_line_is_left_out_and_removed(tmp_path, cut):
    """The second line is 28 bytes; a line that lacks only its newline is whole."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsHistory(path)
    rows = [{"env_steps": 1, "q": 0.5}, {"env_steps": 2, "q": 0.25}]
    for row in rows:
        log.append(row)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = rows if cut == 1 else rows[:1]
    assert read_history(path) == kept
    MetricsHistory(path).append({"env_steps": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        *kept,
        {"env_steps": 3},
    ]


def test_resume_drops_rows_beyond_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsHistory(path)
    for step in range(0, 1000, 100):
        log.append({"env_steps": step})
    resumed = MetricsHistory(path, restored_step=400)
    resumed.append({"env_steps": 450})
    assert [row["env_steps"] for row in resumed.rows()] == [0, 100, 200, 300, 400, 450]


def test_a_broken_line_inside_is_named_and_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is no report"):
        MetricsHistory(path, restored_step=0)
    assert path.read_text().count("\n") == 3


def test_bad_rows_are_refused(tmp_path):
    log = MetricsHistory(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="needs env_steps"):
        log.append({"q": 1.0})
    with pytest.raises(ValueError, match="'q' is a list"):
        log.append({"env_steps": 1, "q": [1.0]})
    assert not log.path.exists()
    with pytest.raises(FileNotFoundError, match="no such metrics file"):
        read_history(log.path)
