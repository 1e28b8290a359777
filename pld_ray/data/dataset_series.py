"""The episodes of something that goes on, as a series of LeRobotDatasets in one folder."""

from __future__ import annotations

import os
import pathlib
import shutil

from pld_ray.columns import Columns
from pld_ray.data.episode_writer import EpisodeWriter, Recording

OPEN, ASIDE = ".open", ".aside-"
"""What is being written, and before the name of a dataset that a run has gone back behind."""


class DatasetSeries:
    """Datasets named after the step at which each was closed; one that is there is whole.

    It takes no lock: the run that it belongs to holds one.

    Args:
        folder: of the series; made with the first episode.
        recording: what all episodes share.
    """

    def __init__(self, folder: pathlib.Path, recording: Recording) -> None:
        self.folder, self.recording = folder, recording
        self._writer: EpisodeWriter | None = None

    def add(self, columns: Columns) -> None:
        """Keep an episode [L + 1, ...] for the dataset that is closed next.

        Raises:
            DataError: its columns differ from those of the episodes before.
        """
        if self._writer is None:
            self._writer = EpisodeWriter(self.folder / OPEN, self.recording, locks=False)
        self._writer.add(columns)

    def close(self, step: int) -> None:
        """The episodes since the last call become a dataset; without one there is none."""
        if self._writer is None:
            return
        self._writer.finish()
        self._writer = None
        os.replace(self.folder / OPEN, self.folder / f"{step:09d}")

    def go_back(self, step: int) -> None:
        """Put what was closed after `step` aside, and drop what was not closed."""
        self._writer = None
        shutil.rmtree(self.folder / OPEN, ignore_errors=True)
        for path in self.folder.glob("[0-9]*"):
            if int(path.name) > step:
                aside = path.with_name(f"{ASIDE}{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(path, aside)
