"""The videos of runs: those in their folders, else those among their artifacts on this machine."""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pld_ray.report.runs import Run

PLACES = ("eval/*/videos/**/*.mp4", "videos/**/*.mp4")
"""In a run's folder: where `pld-ray eval --videos` writes; among artifacts somebody else did."""


@dataclass(frozen=True)
class Video:
    """One video file."""

    run: Run
    root: pathlib.Path
    """The folder of the run, or of its artifacts."""
    path: pathlib.Path
    linked: bool
    """Below a folder that the report is about, so that a relative link survives moving both."""

    @property
    def label(self) -> str:
        """What tells it from the run's others, such as `best: init_state_000.mp4`."""
        parts = self.path.relative_to(self.root).parts
        if parts[0] == "eval":
            return f"{parts[1]}: {'/'.join(parts[3:])}"
        return "/".join(parts[1:])


def find_videos(runs: Iterable[Run], folders: Sequence[pathlib.Path]) -> list[Video]:
    """Videos of the runs, in the order of their names.

    Args:
        folders: run and sweep folders, and the report's own.
    """
    videos = []
    for run in runs:
        for root in _roots(run):
            found = [path for place in PLACES for path in sorted(root.glob(place))]
            videos += [Video(run, root, path, _below(path, folders)) for path in found]
            if found:
                break
    return videos


def _roots(run: Run) -> list[pathlib.Path]:
    roots = []
    if run.tags.get("run_dir"):
        roots.append(pathlib.Path(run.tags["run_dir"]))
    uri = urllib.parse.urlparse(run.artifact_uri)
    if uri.scheme in ("", "file") and uri.path:
        roots.append(pathlib.Path(urllib.parse.unquote(uri.path)))
    return roots


def _below(path: pathlib.Path, folders: Sequence[pathlib.Path]) -> bool:
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)
