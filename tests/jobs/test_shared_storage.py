"""Learners on a node that does not see the run's folder say so, all of them."""

from __future__ import annotations

import pytest
from blind_ranks import begin
from several_ranks import on_ranks

from pld_ray.files.manifest import sha256
from pld_ray.jobs.learners import begin_rank
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import ALONE


@pytest.fixture
def shared(tmp_path):
    """The driver's folder, and what it tells its learners."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 1")
    return folder, {"written": sha256(folder / "config.yaml"), "resumes": False}


def test_every_rank_is_told_that_one_of_them_is_blind(shared, tmp_path):
    folder, given = shared
    own = tmp_path / "own"  # as if another node had it under the same path
    on_ranks(2, begin, [folder, own], given, tmp_path)
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(2)]
    assert told[0].replace(str(folder), str(own)) == told[1]
    assert "output_dir must lie on storage that all nodes share" in told[0]
    assert not own.exists()


def test_another_run_at_the_same_path_is_not_this_one(shared, tmp_path):
    folder, given = shared
    assert begin_rank(RunDir(folder), ALONE, given) is False
    assert begin_rank(RunDir(folder), ALONE, {**given, "resumes": True}) is True
    (folder / "metrics.jsonl").touch()
    assert begin_rank(RunDir(folder), ALONE, given) is True
    (folder / "config.yaml").write_text("seed: 2")
    with pytest.raises(RunError, match="is not the run's folder"):
        begin_rank(RunDir(folder), ALONE, given)
