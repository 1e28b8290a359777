"""Episodes of a LeRobotDataset as the columns that a replay ring takes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from pld_ray.columns import GRIPPER_LABELS, START, SUCCESS
from pld_ray.data.dataset import Dataset, open_datasets
from pld_ray.data.episode_columns import FINAL, RENAMED, Columns, restored
from pld_ray.data.episode_writer import RECORDING_FILE
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import FILE as STATS_FILE
from pld_ray.data.norm_stats import read_norm_stats

REWARD, DONE, REACHED = "next.reward", "next.done", "next.success"
TERMINATED = "next.terminated"
"""Of datasets that a rollout wrote: the task was over, and not merely cut."""
SEEN = ("base_action", "observation.features")
"""Beside the environment's observations, what a rollout's observation holds."""
RECORDED = (*SEEN, "residual_scale", "intervened", START, *GRIPPER_LABELS)
"""What a rollout may have recorded beside what every dataset has."""
KNOWN_ROUNDING = 1e-3
"""Actions may be so far outside the bounds, as a share of the range: they are clipped."""


@dataclass(frozen=True)
class Wanted:
    """What an environment gives and takes, which a dataset must have.

    Attributes:
        observations: column -> shape of a row: vectors (D,), images (H, W, 3).
        action_low, action_high: bounds, [A].
        fps: environment steps per second; None is not known.
        name: of the environment, for messages.
    """

    observations: Mapping[str, tuple[int, ...]]
    action_low: np.ndarray
    action_high: np.ndarray
    fps: float | None
    name: str

    def without_cameras(self) -> Wanted:
        """Vectors alone, which are read without decoding anything."""
        vectors = {name: shape for name, shape in self.observations.items() if len(shape) < 3}
        return replace(self, observations=vectors)


class EpisodeFacts(NamedTuple):
    """What a check needs to know of a demonstration."""

    where: str
    """Dataset and episode, for messages."""
    length: int
    """Transitions."""
    success: bool
    longest_window: int
    """Steps from the first row that may start a window to the end; 0 where none may."""

    @classmethod
    def of(cls, dataset: Dataset, index: int, episode: Columns) -> Self:
        """Of an episode that `episodes_in` gives."""
        where = f"{dataset.root}, episode {index}"
        length = len(episode["reward"]) - 1
        starts = np.flatnonzero(episode[START]) if START in episode else np.arange(length)
        longest = length - int(starts[0]) if len(starts) else 0
        return cls(where, length, bool(episode[SUCCESS].any()), longest)


def check_fits(dataset: Dataset, wanted: Wanted) -> None:
    """Refuse a dataset that was not made in such an environment.

    Raises:
        DataError: naming the feature and both sides.
    """
    where = dataset.root
    dataset.require([REWARD, DONE, "action"])
    for column, shape in wanted.observations.items():
        feature = RENAMED.get(column, column)
        if feature not in dataset.features:
            there = ", ".join(f for f in dataset.features if f.startswith("observation."))
            raise DataError(
                f"{where} has no {feature}, which {wanted.name} gives with shape {shape}; it has "
                f"{there or 'no observation'}: record it in this environment, or choose another"
            )
        found = dataset.shape(feature)
        if found != tuple(shape or (1,)):
            raise DataError(
                f"{where}: {feature} has shape {found}, {wanted.name} gives {tuple(shape)}: record "
                "it in this environment, or choose another"
            )
    if dataset.width("action") != len(wanted.action_low):
        raise DataError(
            f"{where}: actions have {dataset.width('action')} dimensions, {wanted.name} takes "
            f"{len(wanted.action_low)}: choose the environment in which it was recorded"
        )
    if wanted.fps is not None and dataset.fps != wanted.fps:
        raise DataError(
            f"{where} has {dataset.fps:g} frames per second, {wanted.name} makes {wanted.fps:g} "
            "steps per second: an action would mean another movement; record it at that rate"
        )


def check_alike(datasets: Sequence[Dataset], norm_stats: str | None = None) -> None:
    """Refuse datasets that mean different things by a step, or by a state.

    Args:
        datasets: to be learnt from together.
        norm_stats: the statistics that will standardise all of them, see `read_norm_stats`.

    Raises:
        DataError: naming two of them.
    """
    first = datasets[0]
    for other in datasets[1:]:
        if other.fps != first.fps:
            raise DataError(
                f"{first.root} has {first.fps:g} frames per second and {other.root} {other.fps:g}: "
                "as many actions would last another time; record both at one rate, or leave one out"
            )
    if norm_stats is None:
        return
    used = read_norm_stats(norm_stats)
    for dataset in datasets:
        if not (dataset.root / STATS_FILE).is_file():
            continue
        own = read_norm_stats(dataset.root)
        if not all(
            np.array_equal(getattr(own[of], name), value)
            for of in own.keys() & used.keys() & {"state"}
            for name, value in vars(used[of]).items()
        ):
            raise DataError(
                f"{dataset.root / STATS_FILE} has other statistics than norm_stats={norm_stats}: "
                "leave norm_stats out, and those of all demonstrations are taken, or delete the "
                "dataset's"
            )


def episodes_in(
    path: str, wanted: Wanted, successes_only: bool = True
) -> Iterator[tuple[Dataset, int, Columns]]:
    """The episodes of a dataset, or of all datasets in a folder, as `episodes_of` gives them.

    Raises:
        DataError: as `episodes_of`; or there is no such episode.
    """
    found = False
    for dataset in open_datasets(path):
        for index, episode in episodes_of(dataset, wanted, successes_only):
            found = True
            yield dataset, index, episode
    if not found:
        raise DataError(
            f"{path} has no episode that ended in success: record some, or take all with "
            "--demo_episodes=all"
            if successes_only
            else f"{path} has no episode of two frames: record longer ones"
        )


def episodes_of(
    dataset: Dataset, wanted: Wanted, successes_only: bool = True
) -> Iterator[tuple[int, Columns]]:
    """The episodes of a dataset, each [L + 1, ...] with the environment's observations, `action`,
    `reward`, `terminated`, `truncated`, `success`, `residual_scale` and `intervened`, and what else
    a rollout recorded (`base_action`, gripper labels).

    A dataset that a rollout wrote holds the final observation of each episode. In any other an
    episode that ended in success has terminated, and what follows is never looked at; any other was
    cut: its last frame becomes the final observation, which costs one transition.

    Args:
        dataset: finished, see `check_fits`.
        wanted: the environment.
        successes_only: leave out what did not end in success.

    Yields:
        Number of the episode in the dataset, and its columns.

    Raises:
        DataError: actions outside the bounds, something that is not finite, or no row that may
            start a window.
    """
    check_fits(dataset, wanted)
    cameras = [name for name, shape in wanted.observations.items() if len(shape) == 3]
    vectors = [name for name in wanted.observations if name not in cameras]
    recorded = [name for name in RECORDED if name in dataset.features]
    feature = {name: RENAMED.get(name, name) for name in (*vectors, *recorded, "action", "reward")}
    marks = [name for name in (TERMINATED, REACHED) if name in dataset.features][:1]
    table = dataset.columns([*dict.fromkeys([*feature.values(), *marks])])
    columns = {name: table[feature[name]] for name in feature}
    actions = {name: (len(wanted.action_low),) for name in ("action", "base_action")}
    for name, shape in {**wanted.observations, **actions}.items():
        if name in columns:  # vectors of one value are scalars in a dataset
            columns[name] = columns[name].reshape(-1, *shape)
    if START in columns:  # of whatever type a dataset has it
        columns[START] = columns[START].reshape(-1).astype(bool)
    last_frames = dataset.first_frames + dataset.lengths - 1
    success = dataset.successes()
    assert success is not None  # there are rewards, see `check_fits`
    terminated = table[marks[0]][last_frames].astype(bool) if marks else success
    found = started = False
    for index, (first, length) in enumerate(
        zip(dataset.first_frames, dataset.lengths, strict=True)
    ):
        if successes_only and not success[index]:
            continue
        row = dataset.episodes[index]
        rows = {name: values[first : first + length] for name, values in columns.items()}
        for camera in cameras:
            rows[camera] = np.stack(dataset.images(index, camera, range(length)))
        over, reached = bool(terminated[index]), bool(success[index])
        episode = with_final(rows, row, over, reached, wanted)
        if episode is not None:
            check_values(episode, dataset, row["episode_index"], wanted)
            found = True
            started |= START not in episode or bool(episode[START].any())
            yield index, episode
    if found and not started:
        raise no_starts(dataset)


def no_starts(dataset: Dataset) -> DataError:
    """What is raised for a dataset whose column `start` leaves nothing to learn from."""
    return DataError(
        f"{dataset.root}: {START} marks no frame of the episodes that are learnt from, so no "
        "window may begin: mark some, or leave the dataset out"
    )


def with_final(
    rows: Columns, metadata: Mapping[str, Any], terminated: bool, success: bool, wanted: Wanted
) -> Columns | None:
    """L + 1 rows with the flags; None for an episode of a single frame that was cut."""
    seen = [name for name in (*wanted.observations, *SEEN) if name in rows]
    stored = {name: metadata.get(f"{FINAL}{RENAMED.get(name, name)}") for name in seen}
    last = {name: np.zeros_like(values[-1]) for name, values in rows.items()}
    if all(entry is not None for entry in stored.values()):
        last |= {name: restored(entry, rows[name][0]) for name, entry in stored.items() if entry}
    else:
        last |= {name: rows[name][-1] for name in seen}
        if not terminated:
            rows = {name: values[:-1] for name, values in rows.items()}
    length = len(rows["reward"])
    if length == 0:
        return None
    episode = {name: np.concatenate([rows[name], last[name][None]]) for name in rows}
    episode["action"] = episode["action"].astype(np.float32)
    episode["reward"] = episode["reward"].astype(np.float32).reshape(length + 1)
    flags = np.zeros((3, length + 1), bool)
    flags[:, length - 1] = terminated, not terminated, success
    episode["terminated"], episode["truncated"], episode[SUCCESS] = flags
    for name, dtype in (("residual_scale", np.float32), ("intervened", np.bool_)):
        episode.setdefault(name, np.zeros(length + 1, dtype))
    return episode


def check_values(episode: Columns, dataset: Dataset, index: int, wanted: Wanted) -> None:
    """Refuse what no ring can take, and actions in other units; clip rounding beyond the bounds.

    Raises:
        DataError: naming episode, column and range.
    """
    where = f"{dataset.root}, episode {index}"
    for name, values in episode.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values.reshape(len(values), -1)).all(1))[0][0])
            raise DataError(f"{where}: {name} is not finite in frame {row}; leave the episode out")
    low, high = wanted.action_low, wanted.action_high
    slack = KNOWN_ROUNDING * (high - low)
    action = episode["action"][:-1]
    outside = (action < low - slack) | (action > high + slack)
    if outside.any():
        dim = int(np.argwhere(outside.any(0))[0][0])
        raise DataError(
            f"{where}: action dimension {dim} ranges from {action[:, dim].min():.4g} to "
            f"{action[:, dim].max():.4g}, {wanted.name} takes {low[dim]:g} to {high[dim]:g}: it "
            "is in other units; convert it first"
        )
    episode["action"][:-1] = np.clip(action, low, high)


def identity_of(dataset: Dataset) -> str:
    """Digest of a dataset's frames and episodes: equal identities, equal episodes."""
    digest = hashlib.sha256()
    for pattern in ("meta/info.json", "meta/episodes/**/*.parquet", "data/**/*.parquet"):
        for path in sorted(dataset.root.glob(pattern)):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def recording_of(dataset: Dataset) -> dict[str, Any]:
    """What the rollout that wrote a dataset says about it; `{}` for any other dataset."""
    path = dataset.root / RECORDING_FILE
    try:
        about = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it to have base actions computed anew"
        ) from None
    return about if isinstance(about, dict) else {}
