"""Normalisation statistics in OpenPI's format, over the windows that training sees.

The sums are LeRobot's `RunningQuantileStats`. Its histograms lose precision when their range grows,
so the extremes are known before anything is counted, and all sums are taken in float64 around a
point of the data.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from pld_ray.data import lerobot_format as v3
from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError
from pld_ray.data.summary import place

FILE = "norm_stats.json"
EPSILON = 1e-6
BATCH_VALUES = 1 << 24  # float64 values that are held at a time


@dataclass(frozen=True)
class NormStats:
    """Of one vector; each [D] float64. `Normalizer` applies them."""

    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


def compute_norm_stats(
    dataset: Dataset, horizon: int, delta: Sequence[int] = ()
) -> dict[str, NormStats]:
    """Statistics of `state` and `actions`.

    A window of `horizon` actions begins at every frame, or at those marked `start` if the dataset
    marks them; actions past the episode's end are left out. So an action counts as often as windows
    hold it.

    Args:
        dataset: with `observation.state` and `action`.
        horizon: H, actions of a window.
        delta: dimensions whose action is a difference to the state at the window's start.

    Raises:
        DataError: a column is missing or not finite, delta does not fit, H is longer than every
            episode, or `start` marks no frame.
    """
    longest = int(dataset.lengths.max())
    if horizon > longest:
        raise DataError(
            f"--horizon={horizon} is longer than every episode of {dataset.root}, the longest has "
            f"{longest} frames; lower it"
        )
    columns = dataset.columns(["observation.state", "action"])
    check_finite(dataset, columns)
    # vectors of one value are scalars in a dataset
    state, action = (c.astype(np.float64).reshape(len(c), -1) for c in columns.values())
    relative = list(delta)
    if relative and max(relative) >= min(state.shape[1], action.shape[1]):
        raise DataError(
            f"--delta makes dimension {max(relative)} relative but {dataset.root} has "
            f"{action.shape[1]} actions and {state.shape[1]} states; name fewer"
        )
    starts: np.ndarray = np.arange(len(action))
    if "start" in dataset.features:
        starts = np.flatnonzero(dataset.columns(["start"])["start"])
        if len(starts) == 0:
            raise DataError(
                f"the column start of {dataset.root} marks no frame, so that no window begins "
                "anywhere; mark those at which one may, or leave the column out"
            )
    ends = np.repeat(dataset.first_frames + dataset.lengths, dataset.lengths)

    def windows() -> Iterator[np.ndarray]:
        size = max(1, BATCH_VALUES // (horizon * action.shape[1]))
        for first in range(0, len(starts), size):
            batch = starts[first : first + size]
            rows = batch[:, None] + np.arange(horizon)
            valid = rows < ends[batch, None]
            window = action[np.minimum(rows, len(action) - 1)]
            window[..., relative] -= state[batch][:, None, relative]
            yield window[valid]

    return {
        "state": running_stats(lambda: iter([state[starts]])),
        "actions": running_stats(windows),
    }


def check_finite(dataset: Dataset, columns: Mapping[str, np.ndarray]) -> None:
    """Refuse values of which there is no mean.

    Raises:
        DataError: naming dataset, column, episode and frame.
    """
    for name, values in columns.items():
        spoilt = ~np.isfinite(values.reshape(len(values), -1)).all(1)
        if spoilt.any():
            where = place(spoilt, dataset.first_frames)
            raise DataError(f"{dataset.root}: {name} is not finite {where}; leave the episode out")


def running_stats(batches: Callable[[], Iterator[np.ndarray]]) -> NormStats:
    """Of all rows of the batches [n, D], which are gone through twice.

    Raises:
        DataError: there are fewer than two rows.
    """
    from lerobot.datasets.compute_stats import RunningQuantileStats

    extremes: dict[tuple[int, int], np.ndarray] = {}
    count = 0
    for k, batch in enumerate(batches()):
        count += len(batch)
        at = {int(i) for pick in (batch.argmin(0), batch.argmax(0)) for i in pick}
        extremes |= {(k, i): batch[i] for i in at}
        rows, keys = np.stack(list(extremes.values())), list(extremes)
        kept = {int(i) for pick in (rows.argmin(0), rows.argmax(0)) for i in pick}
        extremes = {keys[i]: rows[i] for i in kept}
    if count < 2:
        raise DataError("statistics need at least two frames; give a larger dataset")
    first = np.stack(list(extremes.values()))
    center = first.mean(0)
    running = RunningQuantileStats([0.01, 0.99])
    running.update(first - center)
    for k, batch in enumerate(batches()):
        rest = np.delete(batch, [i for j, i in extremes if j == k], axis=0)
        if len(rest):
            running.update(rest - center)
    found = running.get_statistics()
    shifted = {name: found[name] + center for name in ("mean", "q01", "q99")}
    return NormStats(std=found["std"], **shifted)


def parse_delta(text: str) -> list[int]:
    """`6,-1,6,-1` in OpenPI's way: six relative dimensions, one absolute, six, one.

    Raises:
        DataError: it is no list of numbers other than 0.
    """
    try:
        counts = [int(item) for item in text.split(",")]
    except ValueError:
        counts = [0]
    if 0 in counts:
        raise DataError(f"--delta={text}: must be numbers as in 6,-1,6,-1: relative, absolute")
    marks = [count > 0 for count in counts for _ in range(abs(count))]
    return [k for k, relative in enumerate(marks) if relative]


def write_norm_stats(path: pathlib.Path, stats: dict[str, NormStats]) -> None:
    """OpenPI's `norm_stats.json`."""
    entries = {
        name: {f.name: getattr(s, f.name).tolist() for f in fields(s)} for name, s in stats.items()
    }
    v3.write_json(path, {"norm_stats": entries})


def read_norm_stats(dataset: str | pathlib.Path) -> dict[str, NormStats]:
    """What `write_norm_stats` or OpenPI wrote, of a dataset's folder or from the file itself.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = pathlib.Path(dataset)
    path = path if path.suffix == ".json" else path / FILE
    try:
        entries = json.loads(path.read_text())["norm_stats"]
        names = [f.name for f in fields(NormStats)]
        return {
            key: NormStats(**{n: np.array(entry[n], np.float64) for n in names})
            for key, entry in entries.items()
        }
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: make it with pld-ray norm-stats {path.parent}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is no norm_stats.json ({error!r}): make it anew with "
            f"pld-ray norm-stats {path.parent}"
        ) from None
