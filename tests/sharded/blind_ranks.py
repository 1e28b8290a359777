"""What each of several processes is told that begin in folders of their own."""

from __future__ import annotations

import pathlib
from typing import Any

from pld_ray.jobs.learners import begin_rank
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import Ranks


def begin(
    ranks: Ranks, folders: list[pathlib.Path], given: dict[str, Any], out: pathlib.Path
) -> None:
    """Writes the refusal, or nothing."""
    told = ""
    try:
        begin_rank(RunDir(folders[ranks.rank]), ranks, given)
    except RunError as error:
        told = str(error)
    (out / f"told-{ranks.rank}").write_text(told)
