"""Windows as LeRobot's policies learn from them: vectors in memory, images where they lie."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pld_ray.columns import START
from pld_ray.data.dataset import Dataset, open_datasets
from pld_ray.data.demonstrations import check_alike, no_starts
from pld_ray.data.errors import DataError

ACTION, IS_PAD, TASK = "action", "action_is_pad", "task"


@dataclass(frozen=True)
class Needed:
    """What a policy learns from, in the dataset's names.

    Attributes:
        shapes: observation -> shape of a row; images (C, H, W), of any height and width.
        names: observation -> what the policy calls it.
        action_dim: A.
        observation_steps: frames of an observation relative to its window's first action, oldest
            first; None is that one frame, without a dimension for it.
        action_steps: the same for actions.
    """

    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]
    action_dim: int
    observation_steps: tuple[int, ...] | None
    action_steps: tuple[int, ...]

    @property
    def cameras(self) -> list[str]:
        """The observations that are images."""
        return [name for name, shape in self.shapes.items() if len(shape) == 3]

    @property
    def vectors(self) -> list[str]:
        """The observations that are none, and the action."""
        return [*(name for name in self.shapes if name not in self.cameras), ACTION]


@dataclass(frozen=True)
class Episode:
    """One episode among those of several datasets."""

    source: int
    """Entry of the list of paths."""
    dataset: Dataset
    index: int
    """Within its dataset."""
    rows: np.ndarray
    """Of the dataset's columns, ascending without a gap."""
    starts: np.ndarray
    """Which of the rows may begin a window, bool; at least one."""


def find_episodes(
    paths: Sequence[str | pathlib.Path], needed: Needed, successes_only: bool
) -> list[Episode]:
    """The episodes of all datasets at these paths.

    Args:
        paths: datasets, or folders of them.
        needed: features that each must have.
        successes_only: leave out failures; where a dataset does not tell, nothing failed.

    Raises:
        DataError: a dataset cannot be read, lacks a feature, is given twice, has something that is
            not finite, or frames that do not go with another one's; or a path has no such episode.
    """
    episodes: list[Episode] = []
    opened: set[pathlib.Path] = set()
    for source, path in enumerate(paths):
        found = []
        for dataset in open_datasets(path):
            if (root := dataset.root.resolve()) in opened:
                raise DataError(
                    f"{dataset.root} is given twice: an episode that is held out of the one would "
                    "be learnt from in the other; begin a new run with it given once "
                    "(--dataset_weights sets its share)"
                )
            opened.add(root)
            check_features(dataset, needed)
            found += episodes_of(source, dataset, needed, successes_only)
        if not found:
            raise DataError(
                f"{path} has no episode that ended in success: take all with --episodes=all, or "
                "leave it out"
            )
        episodes += found
    datasets = list({id(episode.dataset): episode.dataset for episode in episodes}.values())
    check_alike(datasets)
    check_same_images(datasets, needed.cameras)
    return episodes


def episodes_of(
    source: int, dataset: Dataset, needed: Needed, successes_only: bool
) -> list[Episode]:
    """The episodes of a dataset from which there is something to learn; see `find_episodes`.

    Where the dataset has a column `start`, windows begin at the frames that it marks, and an
    episode without one is left out.

    Raises:
        DataError: none of them has one, or something that is learnt from is not finite.
    """
    success = dataset.successes() if successes_only else None
    marks = [START] if START in dataset.features else []
    columns = dataset.columns([*needed.vectors, *marks])
    starts = columns.pop(START, np.ones(int(dataset.lengths.sum()))).reshape(-1).astype(bool)
    bounds = zip(dataset.first_frames, dataset.lengths, strict=True)
    rows_of = [np.arange(first, first + length) for first, length in bounds]
    wanted = [
        Episode(source, dataset, index, rows, starts[rows])
        for index, rows in enumerate(rows_of)
        if success is None or success[index]
    ]
    found = [episode for episode in wanted if episode.starts.any()]
    if wanted and not found:
        raise no_starts(dataset)
    for episode in found:
        check_finite(episode, columns)
    return found


def check_finite(episode: Episode, columns: Mapping[str, np.ndarray]) -> None:
    """Refuse an episode that would spoil a loss.

    Args:
        episode: of a dataset.
        columns: of the whole dataset.

    Raises:
        DataError: naming dataset, episode, column and frame.
    """
    rows = episode.rows
    for name, column in columns.items():
        with np.errstate(over="ignore"):  # as it is learnt from
            values = column[rows].reshape(len(rows), -1).astype(np.float32)
        if not (finite := np.isfinite(values).all(1)).all():
            number = episode.dataset.episodes[episode.index]["episode_index"]
            raise DataError(
                f"{episode.dataset.root}, episode {number}: {name} is not finite in frame "
                f"{int(np.argmin(finite))}; leave the episode out"
            )


def check_features(dataset: Dataset, needed: Needed) -> None:
    """Refuse a dataset that lacks what the policy needs.

    Raises:
        DataError: naming the feature and both sides.
    """
    dataset.require([*needed.shapes, ACTION])
    for name, shape in {**needed.shapes, ACTION: (needed.action_dim,)}.items():
        found = dataset.shape(name)
        if len(shape) != 3 and found == shape:
            continue
        if len(shape) == 3 and len(found) == 3 and found[2] == shape[0]:
            continue
        raise DataError(
            f"{dataset.root}: {name} has shape {found}, the policy takes {shape}: fine-tune a "
            "policy of this robot, or record with the other shape"
        )


def check_same_images(datasets: Sequence[Dataset], cameras: Sequence[str]) -> None:
    """Refuse datasets whose images cannot be put into one batch.

    Raises:
        DataError: naming two of them, the camera and both shapes.
    """
    first = datasets[0]
    for other in datasets[1:]:
        for camera in cameras:
            one, another = (d.shape(camera) for d in (first, other))
            if one != another:
                raise DataError(
                    f"{first.root} has {camera} of shape {one} and {other.root} of shape "
                    f"{another}: a batch holds images of one size; record both at one, or leave "
                    "one out"
                )


def hold_out(
    episodes: Sequence[Episode], share: float, seed: int
) -> tuple[list[Episode], list[Episode]]:
    """Episodes to learn from, and `share` of each source's, drawn by `seed`, for validation.

    A share above 0 holds at least one episode back of each source that has two.
    """
    rng = np.random.default_rng([seed, 0])
    held: set[int] = set()
    for source in sorted({episode.source for episode in episodes}):
        own = [k for k, episode in enumerate(episodes) if episode.source == source]
        number = min(len(own) - 1, max(1, round(share * len(own)))) if share else 0
        held |= set(rng.permutation(own)[:number].tolist())
    train = [episode for k, episode in enumerate(episodes) if k not in held]
    return train, [episodes[k] for k in sorted(held)]


class TrainingWindows:
    """Windows of some episodes; the rows of each update are known from its number alone.

    So a run that is resumed goes on with the windows that it would have had, and ranks that share
    an update draw the same rows and each take their part.

    Args:
        episodes: at least one.
        needed: see `find_episodes`.
        weights: of each source, see `FinetuneConfig.dataset_weights`; empty draws frames alike.
        seed: of the draws.
    """

    def __init__(
        self,
        episodes: Sequence[Episode],
        needed: Needed,
        weights: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        self.episodes, self.needed, self.seed = list(episodes), needed, seed
        lengths = np.array([len(episode.rows) for episode in episodes])
        self._first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._last = np.repeat(np.cumsum(lengths) - 1, lengths)
        self._episode = np.repeat(np.arange(len(episodes)), lengths)
        self._row = np.concatenate([episode.rows for episode in episodes])
        marked = np.concatenate([episode.starts for episode in episodes])
        self.starts = np.flatnonzero(marked)
        """Frames at which a window may begin, ascending."""
        self._datasets = {id(e.dataset): e.dataset for e in episodes}
        self._columns = self._read()
        of_datasets = {key: dataset.instructions() for key, dataset in self._datasets.items()}
        self._instructions = self._joined(of_datasets)
        weight = marked.astype(float)
        if weights:
            source = np.array([episode.source for episode in episodes])[self._episode]
            windows = np.bincount(source, marked, minlength=len(weights))
            weight = marked * np.asarray(weights)[source] / windows[source]
        self._cumulative = np.cumsum(weight / weight.sum())

    def __len__(self) -> int:
        """Frames; windows begin at `starts`."""
        return len(self._row)

    def image_shapes(self) -> dict[str, tuple[int, int, int]]:
        """The policy's name of each camera -> (C, H, W), which is the same in all datasets."""
        shapes = {}
        for camera in self.needed.cameras:
            height, width, channels = self.episodes[0].dataset.shape(camera)
            shapes[self.needed.names[camera]] = channels, height, width
        return shapes

    def _read(self) -> dict[str, torch.Tensor]:
        """Vector columns of all episodes, [N, D] float32."""
        names = self.needed.vectors
        tables = {key: dataset.columns(names) for key, dataset in self._datasets.items()}
        columns = {name: self._joined({k: t[name] for k, t in tables.items()}) for name in names}
        return {
            name: torch.from_numpy(column.reshape(len(self), -1).astype(np.float32))
            for name, column in columns.items()
        }

    def _joined(self, columns: Mapping[int, np.ndarray]) -> np.ndarray:
        """One column of all episodes, of those of their datasets."""
        return np.concatenate([columns[id(e.dataset)][e.rows] for e in self.episodes])

    def rows_of_update(self, update: int, number: int) -> np.ndarray:
        """Frames [number] at which the windows of an update begin."""
        drawn = np.random.default_rng([self.seed, 1, update]).random(number)
        rows = np.searchsorted(self._cumulative, drawn, side="right")
        return np.minimum(rows, self.starts[-1])  # the last sum may fall short of 1 by rounding

    def batch(self, rows: np.ndarray) -> dict[str, Any]:
        """The windows that begin at these frames, with the policy's names.

        Returns:
            Observations [B, D] or [B, C, H, W] in [0, 1], with a dimension of steps after B where
            the policy sees several; `action` [B, H, A]; `action_is_pad` [B, H] bool, true past the
            episode's end, where the last action is repeated; `task`, B texts.
        """
        needed = self.needed
        steps, is_pad = self._steps(rows, needed.action_steps)
        batch: dict[str, Any] = {ACTION: self._columns[ACTION][steps], IS_PAD: is_pad}
        seen = torch.from_numpy(rows)
        if needed.observation_steps is not None:
            seen = self._steps(rows, needed.observation_steps)[0]
        for name, own in needed.names.items():
            if name in needed.cameras:
                batch[own] = self._images(name, seen)
            else:
                batch[own] = self._columns[name][seen]
        batch[TASK] = self._instructions[rows].tolist()
        return batch

    def _steps(self, rows: np.ndarray, steps: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Frames [B, T] `steps` away from `rows`, inside the episode, and which were outside."""
        wanted = rows[:, None] + np.asarray(steps)
        inside = np.clip(wanted, self._first[rows][:, None], self._last[rows][:, None])
        return torch.from_numpy(inside), torch.from_numpy(inside != wanted)

    def _images(self, camera: str, frames: torch.Tensor) -> torch.Tensor:
        """Images [..., C, H, W] in [0, 1] at frames [...] of ours."""
        wanted = frames.numpy().reshape(-1)
        images: dict[int, np.ndarray] = {}
        datasets = [self.episodes[k].dataset for k in self._episode[wanted]]
        for dataset in {id(d): d for d in datasets}.values():
            own = np.array([k for k, d in enumerate(datasets) if d is dataset])
            decoded = dataset.images_at(camera, self._row[wanted[own]])
            images |= dict(zip(own.tolist(), decoded, strict=True))
        stacked = torch.from_numpy(np.stack([images[k] for k in range(len(wanted))]))
        return (stacked.movedim(-1, -3).float() / 255).unflatten(0, frames.shape)
