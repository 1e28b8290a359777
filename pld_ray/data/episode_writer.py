"""Episodes of a rollout into one LeRobotDataset, one at a time, and on again after a kill."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pld_ray.columns import SUCCESS
from pld_ray.data import lerobot_format as v3
from pld_ray.data.assemble import assemble, move_into_place
from pld_ray.data.episode_columns import Columns, features_of, to_frames
from pld_ray.data.errors import DataError
from pld_ray.data.parts import read_description, stored_features, write_part
from pld_ray.files.lock import FolderLock

PROGRESS_FILE, WORK_FOLDER = "collection_progress.json", ".collection"
RECORDING_FILE = "meta/recording.json"
"""Of the finished dataset: what its episodes share, the base policy's fingerprint among it."""
CHECKSUM = "checkpoint_checksum"
"""Of a recording: of the checkpoint that plays, by its manifest. Older releases wrote none."""


@dataclass(frozen=True)
class Recording:
    """What all episodes of a dataset share; a recording that is resumed must have the same."""

    task: str
    """What is done, in words."""
    fps: int
    """Environment steps per second."""
    robot_type: str | None = None
    about: Mapping[str, Any] | None = None
    """Plain values about where the episodes come from: environment, base policy, checkpoint."""
    names: Mapping[str, list[str]] | None = None
    """Column -> a name for each dimension."""

    def identity(self) -> dict[str, Any]:
        """As plain JSON."""
        shared = {"task": self.task, "fps": self.fps, "robot_type": self.robot_type}
        return json.loads(json.dumps({**shared, **(self.about or {})}))


class EpisodeWriter:
    """Keeps each episode on disk as it ends and puts the dataset together at the end.

    While it goes on, `ROOT/.collection/parts` holds what is done and `collection_progress.json`
    says what it belongs to; killed at any moment, it goes on with what was kept. The folder is this
    object's alone from here to `finish`, or to the end of a `with` block.

    Args:
        root: of the dataset: new, or of this recording when it was stopped.
        recording: what all episodes share.
        locks: False where a lock of the caller's guards the folder already.

    Attributes:
        lengths: transitions of each kept episode.
        successes: of the kept episodes.

    Raises:
        DataError: the folder holds something else, the recording was begun otherwise, or another
            writer is at work there.
    """

    def __init__(self, root: pathlib.Path, recording: Recording, locks: bool = True) -> None:
        self.root, self.recording = root, recording
        self._work = root / WORK_FOLDER
        self._parts = self._work / "parts"
        self._features: v3.Features | None = None
        self._lock = FolderLock(self._work)
        check_goes_on(root, recording)  # what is refused is left as it is
        if locks:
            self._claim()
        try:
            self._begin()
            described = [read_description(part) for part in self._done()]
        except BaseException:
            self._lock.release()
            raise
        self.lengths = [int(entry["length"]) for entry in described]
        self.successes = [bool(entry["columns"]["success"]) for entry in described]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, columns: Columns, about: Mapping[str, Any] | None = None) -> None:
        """Keep an episode; it is on the disk when this returns.

        Args:
            columns: [L + 1, ...], see `episode_columns`.
            about: plain values for the episode's row of metadata.

        Raises:
            DataError: its columns differ from those of the episodes before, or somebody else
                has written an episode of its number.
        """
        part = self._parts / f"{len(self):06d}"
        if part.exists():
            raise DataError(
                f"{part} is there already: somebody else records into {self.root} too; give "
                "another folder"
            )
        names = dict(self.recording.names or {})
        features = features_of(columns, names)
        if self._features is None:
            self._features = self._settled(features)
        if features != self._features:
            differing = sorted(
                k
                for k in {**features, **self._features}
                if features.get(k) != self._features.get(k)
            )
            raise DataError(
                f"{self.root}: an episode's {', '.join(differing)} differs from the episodes "
                "before; record it into another dataset"
            )
        frames, images, final = to_frames(columns)
        success = bool(columns[SUCCESS].any())
        write_part(
            part,
            stored_features(features),
            frames,
            {name: Frames(values) for name, values in images.items()},
            self.recording.fps,
            {"columns": {"success": success, **(about or {}), **final}},
        )
        self.lengths.append(len(columns["reward"]) - 1)
        self.successes.append(success)

    def finish(self) -> None:
        """Make the dataset of what was kept, and put it into place.

        Raises:
            DataError: there is no episode.
        """
        parts = self._done()
        if not parts or self._features is None:
            raise DataError(f"{self.root}: no episode was recorded, so there is no dataset")
        features = stored_features(self._features)
        staged = self._work / "dataset"
        shutil.rmtree(staged, ignore_errors=True)
        recording = self.recording
        assemble(parts, staged, features, recording.fps, recording.task, recording.robot_type)
        v3.write_json(staged / RECORDING_FILE, recording.identity())
        self._write("assembled")
        self._put_into_place()

    # --- files -----------------------------------------------------------------------------------

    def _claim(self) -> None:
        owner = self._lock.claim(alone=True)
        if owner is not None:
            raise DataError(
                f"{self.root} is in use by {owner}: wait for it, or give another folder"
            )
        weakref.finalize(self, self._lock.release)  # where there is no `with` and no `finish`

    def _begin(self) -> None:
        saved = check_goes_on(self.root, self.recording)
        if saved is None:
            self._parts.mkdir(parents=True, exist_ok=True)
            self._write("recording")
            return
        self._features = saved["features"]
        if saved["state"] == "assembled":
            self._put_into_place()
            raise DataError(f"{self.root} holds a finished dataset already; give a new folder")

    def _settled(self, features: v3.Features) -> v3.Features:
        """The features of the first episode, on the disk before it is."""
        self._features = features
        self._write("recording")
        return features

    def _write(self, state: str) -> None:
        progress = {
            "state": state,
            "recording": self.recording.identity(),
            "features": self._features,
        }
        v3.write_json(self.root / PROGRESS_FILE, progress)

    def _put_into_place(self) -> None:
        if (self._work / "dataset").exists():
            move_into_place(self._work / "dataset", self.root)
        self._write("finished")
        self._lock.release()
        shutil.rmtree(self._work, ignore_errors=True)

    def _done(self) -> list[pathlib.Path]:
        return parts_of(self.root)


def begun_in(root: pathlib.Path) -> dict[str, Any] | None:
    """The progress of the recording in a folder, None where nothing is kept yet.

    Raises:
        DataError: nothing can be recorded there: it is a file or below one, holds something else,
            or a dataset that is finished.
    """
    for folder in root.parents:
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{root}: {folder} is a file, not a folder")
    path = root / PROGRESS_FILE
    if not path.is_file():
        own = {WORK_FOLDER, f".{PROGRESS_FILE}.partial"}  # of one that was killed as it began
        is_new = not root.exists() or (
            root.is_dir() and not set(os.listdir(root)) - own and not parts_of(root)
        )
        if not is_new:
            raise DataError(f"{root} holds something already; give a new folder")
        return None
    saved = read_progress(path)
    if saved["state"] == "finished":
        raise DataError(f"{root} holds a finished dataset already; give a new folder")
    stopped_before_an_episode = saved["state"] == "recording" and not parts_of(root)
    return None if stopped_before_an_episode else saved


def check_goes_on(root: pathlib.Path, recording: Recording) -> dict[str, Any] | None:
    """`begun_in` of a folder that this recording may begin, or go on with.

    Raises:
        DataError: as `begun_in`, or it was begun otherwise.
    """
    saved = begun_in(root)
    if saved is None:
        return None
    wanted = recording.identity()
    if CHECKSUM not in saved["recording"]:
        wanted.pop(CHECKSUM, None)
    for name in {**saved["recording"], **wanted}:
        if saved["recording"].get(name) != wanted.get(name):
            raise DataError(
                f"{root} was begun with {name}={saved['recording'].get(name)!r} and is "
                f"now asked for {wanted.get(name)!r}; give another folder, or the former value"
            )
    return saved


def parts_of(root: pathlib.Path) -> list[pathlib.Path]:
    """The episodes of a recording that is not over, each in a folder."""
    return sorted(path for path in (root / WORK_FOLDER / "parts").glob("[0-9]*") if path.is_dir())


def kept_so_far(root: pathlib.Path, successes: bool = False) -> int:
    """Episodes of a recording that was stopped, or those of them that succeeded."""
    parts = parts_of(root)
    if not successes:
        return len(parts)
    return sum(bool(read_description(part)["columns"]["success"]) for part in parts)


class Frames:
    """The images of an episode as `parts.Camera`."""

    def __init__(self, images: np.ndarray) -> None:
        self._images = images

    def pixels(self, frame: int) -> np.ndarray:
        """RGB, [H, W, 3] uint8."""
        return self._images[frame]

    def encoded(self, frame: int) -> None:
        """They are not encoded yet."""


def read_progress(path: pathlib.Path) -> dict[str, Any]:
    """What a recording is doing and what it belongs to.

    Raises:
        DataError: the file is damaged.
    """
    try:
        saved = json.loads(path.read_text())
        return {name: saved[name] for name in ("state", "recording", "features")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); delete {path.parent}") from None
