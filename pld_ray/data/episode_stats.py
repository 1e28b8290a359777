"""Statistics of one episode and of many, as LeRobot's `compute_episode_stats` defines them.

Quantiles come from a histogram of 5000 bins between the episode's extremes; images are looked at
in a sample of frames, thinned out to about 150 pixels. Of uint8 pixels the sums are taken over
their 256 counts, which gives the same figures in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NUM_BINS = 5000
Stats = dict[str, np.ndarray]


def weighted_stats(values: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Of values [N] that occur `weights` [N] times, all positive."""
    count = weights.sum()
    mean = float(values @ weights / count)
    stats = {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": mean,
        "std": float(np.sqrt((values - mean) ** 2 @ weights / count)),
    }
    if count < 2:
        return stats | dict.fromkeys(QUANTILES, mean)
    edges = np.linspace(stats["min"] - 1e-10, stats["max"] + 1e-10, NUM_BINS + 1)
    below = np.cumsum(np.histogram(values, edges, weights=weights)[0])
    for name, share in QUANTILES.items():
        k = int(np.searchsorted(below, share * count))
        if k == 0:
            stats[name] = float(edges[0])
        elif k >= NUM_BINS:
            stats[name] = float(edges[-1])
        else:
            inside = (share * count - below[k - 1]) / (below[k] - below[k - 1])
            stats[name] = float(edges[k] + inside * (edges[k + 1] - edges[k]))
    return stats


def vector_stats(values: np.ndarray) -> Stats:
    """Of a column [T] or [T, D], per dimension."""
    columns = values.reshape(len(values), -1).astype(np.float64)
    ones = np.ones(len(values))
    each = [weighted_stats(column, ones) for column in columns.T]
    stats = {name: np.array([s[name] for s in each]) for name in each[0]}
    return stats | {"count": np.array([len(values)])}


def sampled_frames(num_frames: int) -> np.ndarray:
    """Frames of an episode that its image statistics look at."""
    number = max(min(100, num_frames), min(int(num_frames**0.75), 10_000))
    return np.unique(np.round(np.linspace(0, num_frames - 1, number)).astype(int))


def thinned(image: np.ndarray) -> np.ndarray:
    """Every k-th pixel of an image [H, W, C] that is 300 pixels or larger."""
    height, width = image.shape[:2]
    if max(height, width) < 300:
        return image
    k = int((width if width > height else height) / 150)
    return image[::k, ::k]


class PixelCounts:
    """How often each of the 256 values occurs in each channel."""

    def __init__(self) -> None:
        self.counts = np.zeros((3, 256), np.int64)
        self.num_images = 0

    def add(self, image: np.ndarray) -> None:
        """Count an image [H, W, 3] uint8."""
        pixels = thinned(image)
        for channel in range(3):
            self.counts[channel] += np.bincount(pixels[..., channel].ravel(), minlength=256)
        self.num_images += 1

    def stats(self) -> Stats:
        """Per channel [3, 1, 1], of values in [0, 1]."""
        each = []
        for counts in self.counts:
            seen = np.flatnonzero(counts)
            each.append(weighted_stats(seen.astype(np.float64), counts[seen].astype(np.float64)))
        stats = {name: np.array([s[name] for s in each]) / 255.0 for name in each[0]}
        stats = {name: values.reshape(3, 1, 1) for name, values in stats.items()}
        return stats | {"count": np.array([self.num_images])}


def aggregate(episodes: Sequence[dict[str, Stats]]) -> dict[str, Stats]:
    """Of all episodes together; quantiles are the episodes' mean, weighted by frames."""
    total: dict[str, Stats] = {}
    for name in episodes[0]:
        of_each = {key: np.stack([e[name][key] for e in episodes]) for key in episodes[0][name]}
        count = of_each.pop("count")
        weights = count.reshape(-1, *(1,) * (of_each["mean"].ndim - 1)) / count.sum()
        mean = (of_each["mean"] * weights).sum(0)
        variance = (of_each["std"] ** 2 + (of_each["mean"] - mean) ** 2) * weights
        total[name] = {
            "min": of_each["min"].min(0),
            "max": of_each["max"].max(0),
            "mean": mean,
            "std": np.sqrt(variance.sum(0)),
            "count": np.array([count.sum()]),
        } | {key: (of_each[key] * weights).sum(0) for key in QUANTILES}
    return total


def as_lists(stats: dict[str, Stats]) -> dict[str, dict[str, Any]]:
    """For JSON."""
    return {name: {k: v.tolist() for k, v in each.items()} for name, each in stats.items()}


def as_arrays(stats: dict[str, dict[str, Any]]) -> dict[str, Stats]:
    """From JSON."""
    return {name: {k: np.asarray(v) for k, v in each.items()} for name, each in stats.items()}
