"""A learner knows the folder of its run from that of another."""

from __future__ import annotations

import pytest

from pld_ray.files.manifest import sha256
from pld_ray.jobs.learners import begin_rank
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import ALONE


def test_another_run_at_the_same_path_is_not_this_one(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 1")
    given = {"written": sha256(folder / "config.yaml"), "resumes": False}
    assert begin_rank(RunDir(folder), ALONE, given) is False
    assert begin_rank(RunDir(folder), ALONE, {**given, "resumes": True}) is True
    (folder / "metrics.jsonl").touch()
    assert begin_rank(RunDir(folder), ALONE, given) is True
    (folder / "config.yaml").write_text("seed: 2")
    with pytest.raises(RunError, match="is not the run's folder"):
        begin_rank(RunDir(folder), ALONE, given)
