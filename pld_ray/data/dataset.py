"""Reading a LeRobotDataset v3 from its folder, columns whole and images where they are wanted."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pld_ray.data import lerobot_format as v3
from pld_ray.data.dataset_meta import (
    NOT_FINALIZED,
    damaged,
    read_episodes,
    read_info,
    unreadable,
)
from pld_ray.data.errors import DataError

KEYS = ("episode_index", "frame_index")


class Dataset:
    """A finished dataset on disk.

    Args:
        root: its folder.

    Attributes:
        info: `meta/info.json`.
        episodes: a row of metadata for each, without statistics, ascending.

    Raises:
        DataError: the folder is no dataset, of another version, damaged, or was never finalized.
    """

    def __init__(self, root: str | pathlib.Path) -> None:
        self.root = pathlib.Path(root)
        self.info = read_info(self.root)
        self.episodes = read_episodes(self.root, self.info)

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.info["fps"]

    @property
    def tasks(self) -> list[str]:
        """What is done in the episodes, in words."""
        return sorted({task for row in self.episodes for task in row.get("tasks") or []})

    @property
    def features(self) -> v3.Features:
        """Name -> dtype, shape, names."""
        return self.info["features"]

    @property
    def cameras(self) -> list[str]:
        """Image and video features."""
        return [name for name, f in self.features.items() if f["dtype"] in ("image", "video")]

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each episode, [E] int64."""
        return np.array([row["length"] for row in self.episodes], np.int64)

    @property
    def first_frames(self) -> np.ndarray:
        """Row at which each episode begins in `columns`, [E] int64."""
        return np.cumsum(self.lengths) - self.lengths

    def width(self, name: str) -> int:
        """Values of a vector feature in each frame."""
        self.require([name])
        return int(np.prod(self.features[name]["shape"]))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a feature in each frame; of cameras (H, W, C), as they are decoded.

        LeRobot's `gym_manipulator` declares them (C, H, W).
        """
        self.require([name])
        shape = tuple(self.features[name]["shape"])
        names = self.features[name].get("names")
        channels_first = isinstance(names, list) and names[:1] in (["channel"], ["channels"])
        if name in self.cameras and channels_first:
            return (*shape[1:], shape[0])
        return shape

    def names(self, name: str) -> list[str]:
        """Of a feature's dimensions; numbers if it has none.

        LeRobot has them as a list, as lists by group, or, of some teleoperators, as name -> place.
        """
        given: Any = self.features[name].get("names")
        if isinstance(given, dict):
            values = list(given.values())
            if all(isinstance(items, list) for items in values):
                given = [item for items in values for item in items]
            elif all(isinstance(place, int) for place in values):
                given = sorted(given, key=given.__getitem__)
        if isinstance(given, list) and len(given) == self.width(name):
            return [str(item) for item in given]
        return [str(k) for k in range(self.width(name))]

    def require(self, names: Sequence[str]) -> None:
        """Raise DataError unless the dataset has these features."""
        missing = [name for name in names if name not in self.features]
        if missing:
            raise DataError(
                f"{self.root} has no {', '.join(missing)}, only {', '.join(self.features)}; "
                "record or convert it with what is missing"
            )

    def columns(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Whole columns, frames of all episodes in order: [N] or [N, D].

        Raises:
            DataError: the dataset has no such feature, a file cannot be read, or what it holds is
                not what `meta/` says.
        """
        self.require(names)
        wanted = list(dict.fromkeys([*names, *KEYS]))
        files = sorted((self.root / "data").glob("*/*.parquet"))
        parts = [self._numbers(path, wanted) for path in files]
        num_rows = sum(len(part["frame_index"]) for part in parts)
        if num_rows != self.lengths.sum():
            raise DataError(
                f"{self.root}/data has {num_rows} of {self.lengths.sum()} frames: {NOT_FINALIZED}"
            )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in wanted}
        order = np.lexsort((columns["frame_index"], columns["episode_index"]))
        if not (order == np.arange(num_rows)).all():
            columns = {name: column[order] for name, column in columns.items()}
        self._check_frames(*(columns[name] for name in KEYS))
        return {name: columns[name] for name in names}

    def _numbers(self, path: pathlib.Path, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of one file."""
        table = self._table(path, names)
        columns = {}
        for name in names:
            width = self.width(name) if name in self.features else 1
            try:
                columns[name] = as_numpy(table[name], width)
            except TypeError as error:
                raise DataError(f"{path}: {name} {error}") from None
            except ValueError as error:
                raise damaged(path, f"{name} {error}") from None
        return columns

    def _table(self, path: pathlib.Path, names: Sequence[str], filters: Any = None) -> pa.Table:
        try:
            return pq.read_table(path, columns=list(names), filters=filters)
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(path, error, names) from None

    def _check_frames(self, episode: np.ndarray, frame: np.ndarray) -> None:
        """Refuse frames [N], in order, which are not those that the episodes' rows count."""
        listed = {row["episode_index"]: row["length"] for row in self.episodes}
        expected = np.repeat(list(listed), list(listed.values()))
        wrong = episode != expected
        if wrong.any():
            at = int(wrong.argmax())  # of two numbers there the lower has too few or too many
            number = int(np.fmin(episode[at], expected[at]))
            raise damaged(
                self.root / "data",
                f"it has {(episode == number).sum()} frames of episode {number}, meta/episodes "
                f"lists {listed.get(number, 0)}",
            )
        stands = (np.diff(episode) == 0) & ~(np.diff(frame) > 0)
        if stands.any():
            at = int(stands.argmax())
            raise damaged(
                self.root / "data",
                f"frame_index goes from {frame[at]} to {frame[at + 1]} in episode {episode[at]}",
            )

    def instructions(self) -> np.ndarray:
        """What is done at each frame, in words: [N] of str; an episode may have several.

        Raises:
            DataError: `meta/tasks.parquet` cannot be read, or lacks a frame's task.
        """
        of_episodes = [row.get("tasks") or [""] for row in self.episodes]
        if all(len(tasks) == 1 for tasks in of_episodes):
            return np.repeat(np.array([tasks[0] for tasks in of_episodes], object), self.lengths)
        path = self.root / v3.TASKS_PATH
        try:
            tasks = pq.read_table(path).to_pandas()["task_index"]
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise unreadable(path, error) from None
        words = {int(number): str(task) for task, number in tasks.items()}
        numbers = self.columns(["task_index"])["task_index"].reshape(-1)
        if missing := set(numbers.tolist()) - words.keys():
            raise DataError(f"{path} has no task {min(missing)}, which frames name: write it again")
        return np.array([words[number] for number in numbers.tolist()], object)

    def images(self, episode: int, camera: str, frames: Sequence[int]) -> list[np.ndarray]:
        """Images [H, W, 3] uint8 at ascending frames of an episode."""
        self.require([camera])
        row = self.episodes[episode]
        if self.features[camera]["dtype"] == "video":
            from pld_ray.data.video_files import read_frames

            place = {k: row[f"videos/{camera}/{k}"] for k in ("chunk_index", "file_index")}
            path = self.root / self.info["video_path"].format(video_key=camera, **place)
            begin = row[f"videos/{camera}/from_timestamp"]
            return read_frames(path, [begin + frame / self.fps for frame in frames], self.fps)
        import cv2

        place = {k: row[f"data/{k}"] for k in ("chunk_index", "file_index")}
        path = self.root / self.info["data_path"].format(**place)
        only = [("episode_index", "=", row["episode_index"])]
        files = self._table(path, [camera], only)[camera]
        if len(files) != row["length"]:
            what = f"it has {len(files)} frames of episode {row['episode_index']}"
            raise damaged(path, f"{what}, meta/episodes lists {row['length']}")
        images = []
        for frame in frames:
            data = np.frombuffer(files[frame].as_py()["bytes"], np.uint8)
            image = cv2.imdecode(data, cv2.IMREAD_COLOR)
            if image is None:
                raise DataError(
                    f"{path}: {camera} of episode {row['episode_index']}, frame {frame} does not "
                    "decode; write the dataset again"
                )
            images.append(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        return images

    def images_at(self, camera: str, rows: np.ndarray) -> np.ndarray:
        """Images [n, H, W, 3] uint8 at rows of `columns`, in any order, each decoded once."""
        wanted, place = np.unique(rows, return_inverse=True)
        first = self.first_frames
        episodes = np.searchsorted(first, wanted, side="right") - 1
        images: list[np.ndarray] = []
        for episode in np.unique(episodes):
            inside = (wanted[episodes == episode] - first[episode]).tolist()
            images += self.images(int(episode), camera, inside)
        return np.stack(images)[place]

    def successes(self) -> np.ndarray | None:
        """Whether each episode reached its goal, [E] bool; None if the dataset does not say.

        Without `next.success` a last reward above 0 does: `next.done` marks failures too.
        """
        if "next.success" in self.features:
            success = self.columns(["next.success"])["next.success"]
            return np.logical_or.reduceat(success, self.first_frames)
        if "next.reward" not in self.features:
            return None
        reward = self.columns(["next.reward"])["next.reward"]
        return reward.reshape(-1)[self.first_frames + self.lengths - 1] > 0


def open_datasets(path: str | pathlib.Path) -> list[Dataset]:
    """The dataset in a folder or, in order, those in its folders, as in a run's `buffer`.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    root = pathlib.Path(path)
    inside = sorted(root.glob(f"[!.]*/{v3.INFO_PATH}"))
    if (root / v3.INFO_PATH).exists() or not inside:
        return [Dataset(root)]
    return [Dataset(info.parents[1]) for info in inside]


def open_all(paths: Iterable[str | pathlib.Path]) -> list[Dataset]:
    """Every dataset of several paths, see `open_datasets`."""
    return [dataset for path in paths for dataset in open_datasets(path)]


def as_numpy(column: pa.ChunkedArray, width: int) -> np.ndarray:
    """A column of numbers or flags, [N] or [N, width].

    Where it is empty a number is NaN.

    Raises:
        TypeError: it holds something else; how its name goes on in a sentence.
        ValueError: it is not as wide, or a flag is empty; likewise.
    """
    is_vector = pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type)
    if is_vector:
        flat = column.combine_chunks()
        widths = pc.list_value_length(flat).fill_null(0).to_numpy()
        values = np.asarray(flat.flatten().to_numpy(zero_copy_only=False))
    else:
        widths = np.ones(len(column), np.int64)
        values = np.asarray(column.to_numpy())
    if pa.types.is_boolean(column.type) and column.null_count:
        raise ValueError("has empty rows")
    if values.dtype.kind not in "biuf":
        raise TypeError(f"holds {column.type}, and only numbers and vectors of them can be read")
    if (wrong := widths != width).any():
        row = int(wrong.argmax())
        raise ValueError(f"has {widths[row]} values in row {row}, {v3.INFO_PATH} says {width}")
    return values.reshape(-1, width) if is_vector else values
