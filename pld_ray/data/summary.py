"""What is in a dataset: episodes, lengths, successes, ranges of each dimension, oddities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pld_ray.data.dataset import Dataset

FAR = 6.0  # interquartile ranges beyond the quartiles
MAX_WIDTH = 64  # wider vectors (embeddings) are not shown dimension by dimension
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Dimension:
    """One dimension of a feature over all frames.

    Attributes:
        low, q01, median, q99, high: of its finite values.
        mark: what stands out, empty if nothing does.
    """

    feature: str
    name: str
    low: float
    q01: float
    median: float
    q99: float
    high: float
    mark: str


@dataclass(frozen=True)
class DatasetSummary:
    """Of a whole dataset.

    Attributes:
        lengths: frames of each episode.
        success: of each episode; None if the dataset does not say.
        returns: sum of rewards of each episode; None without rewards.
        dimensions: of all numeric features, in the dataset's order.
        notes: a sentence for each thing that a person should look at.
    """

    dataset: Dataset
    lengths: np.ndarray
    success: np.ndarray | None
    returns: np.ndarray | None
    dimensions: list[Dimension]
    notes: list[str]

    @property
    def success_share(self) -> float | None:
        """In [0, 1]."""
        return None if self.success is None else float(self.success.mean())


def summarize(dataset: Dataset) -> DatasetSummary:
    """Look at every number of a dataset."""
    names = [
        name
        for name, feature in dataset.features.items()
        if feature["dtype"].startswith(("float", "int", "uint"))
        and name not in BOOKKEEPING
        and len(feature["shape"]) == 1
        and feature["shape"][0] <= MAX_WIDTH
    ]
    columns = dataset.columns(names)
    first = dataset.first_frames
    dimensions: list[Dimension] = []
    for name, values in columns.items():
        values = values.reshape(len(values), -1).astype(np.float64)
        labels = dataset.names(name)
        for k in range(values.shape[1]):
            dimensions.append(describe(name, labels[k], values[:, k], first))
    reward = columns.get("next.reward")
    returns = None if reward is None else np.add.reduceat(reward.reshape(-1), first)
    success = dataset.successes()
    lengths = dataset.lengths
    notes = [f"{d.feature} {d.name}: {d.mark}" for d in dimensions if d.mark]
    notes += unusual_lengths(lengths)
    if success is not None and not success.any():
        notes.append("no episode is a success")
    return DatasetSummary(dataset, lengths, success, returns, dimensions, notes)


def describe(feature: str, name: str, values: np.ndarray, first: np.ndarray) -> Dimension:
    """Range and oddities of one dimension [N]; first [E]: where episodes begin."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        nothing = (np.nan,) * 5
        return Dimension(feature, name, *nothing, mark="holds no finite value")
    low, q01, q25, median, q75, q99, high = np.quantile(
        finite, [0, 0.01, 0.25, 0.5, 0.75, 0.99, 1]
    ).tolist()
    mark = ""
    spread = q75 - q25
    far = (values < q25 - FAR * spread) | (values > q75 + FAR * spread)
    if len(finite) < len(values):
        spoilt = ~np.isfinite(values)
        mark = f"{int(spoilt.sum())} values are not finite, first {place(spoilt, first)}"
    elif low == high and not feature.startswith("next."):
        mark = "never changes"
    elif spread > 0 and far.any() and far.mean() <= 0.01:
        number = int(far.sum())
        mark = f"{number} outlier{'s' * (number > 1)}, first {place(far, first)}"
    return Dimension(feature, name, low, q01, median, q99, high, mark)


def place(marked: np.ndarray, first: np.ndarray) -> str:
    """Where the first marked frame is."""
    frame = int(np.flatnonzero(marked)[0])
    episode = int(np.searchsorted(first, frame, side="right")) - 1
    return f"in episode {episode}, frame {frame - first[episode]}"


def unusual_lengths(lengths: np.ndarray) -> list[str]:
    """Episodes that are much shorter or longer than the others."""
    q25, q75 = np.quantile(lengths, [0.25, 0.75])
    spread = max(q75 - q25, 1.0)
    odd = np.flatnonzero((lengths < q25 - FAR * spread) | (lengths > q75 + FAR * spread))
    return [f"episode {k} has {lengths[k]} frames, unlike the others" for k in odd[:20]]


def chosen_episodes(summary: DatasetSummary, number: int = 4) -> list[int]:
    """Those worth a look: a success, a failure, the shortest, the longest."""
    picks = [int(summary.lengths.argmin()), int(summary.lengths.argmax())]
    if summary.success is not None:
        kinds = (np.flatnonzero(summary.success), np.flatnonzero(~summary.success))
        picks = [int(kind[0]) for kind in kinds if len(kind)] + picks
    picks += range(len(summary.lengths))
    return sorted(list(dict.fromkeys(picks))[:number])
