"""Columns of a rollout's episode <-> frames of a LeRobotDataset, without losing a bit.

An episode of L transitions is L + 1 rows of columns (`rollout.episode`) and L frames of a dataset:
LeRobot's frames have an action each, the final observation has none. It is kept in the episode's
row of metadata, under `final/<feature>`: vectors as numbers, images as PNG in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from pld_ray.data import lerobot_format as v3
from pld_ray.data.errors import DataError

Columns = dict[str, np.ndarray]

FINAL = "final/"
"""Before the name of a feature, in an episode's row of metadata."""
RENAMED = {
    "reward": "next.reward",
    "success": "next.success",
    "task_index": "observation.task_index",
}
"""Column -> feature, where LeRobot has a name of its own or uses ours for something else."""
MARKS = ("terminated", "truncated")
"""Columns that are one fact in a dataset: `next.done`, and which of the two it was."""
ACTED = "residual"
"""Feature: whether the residual acted in this frame."""


def is_camera(values: np.ndarray) -> bool:
    """Whether a column is images [L + 1, H, W, 3] uint8."""
    return values.dtype == np.uint8 and values.ndim == 4


def features_of(columns: Columns, names: Mapping[str, list[str]]) -> v3.Features:
    """The features of a dataset that keeps such episodes.

    Args:
        columns: of one episode.
        names: column -> a name for each dimension; numbers where there are none.
    """
    features: v3.Features = {}
    for name, values in columns.items():
        if name in MARKS:
            continue
        feature = RENAMED.get(name, name)
        if is_camera(values):
            features[feature] = v3.camera("image", *values.shape[1:3])
        elif values.ndim == 2 and values.shape[1] > 1:
            given = names.get(name) or [str(k) for k in range(values.shape[1])]
            features[feature] = v3.vector(given) | {"dtype": str(values.dtype)}
        else:
            features[feature] = v3.scalar(str(values.dtype))
    flags = ("next.done", "next.terminated", ACTED)
    return features | {name: v3.scalar("bool") for name in flags}


def to_frames(columns: Columns) -> tuple[Columns, Columns, dict[str, Any]]:
    """An episode as a dataset keeps it.

    Args:
        columns: [L + 1, ...], the last row is the final observation.

    Returns:
        Vectors and scalars [L, ...] by feature; images [L, H, W, 3] by feature; the entries of the
        episode's row of metadata.
    """
    frames: Columns = {}
    images: Columns = {}
    final: dict[str, Any] = {}
    for name, values in columns.items():
        if name in MARKS:
            continue
        feature = RENAMED.get(name, name)
        (images if is_camera(values) else frames)[feature] = values[:-1]
        if name.startswith("observation.") or name in ("base_action", "task_index"):
            final[f"{FINAL}{feature}"] = kept(values[-1])
    done = np.zeros(len(columns["reward"]) - 1, bool)
    done[-1] = True
    frames["next.done"] = done
    frames["next.terminated"] = columns["terminated"][:-1]
    frames[ACTED] = columns["residual_scale"][:-1] > 0
    return frames, images, final


def kept(value: np.ndarray) -> list[float] | str:
    """A row of the final observation for the metadata."""
    if value.ndim < 3:
        return value.reshape(-1).tolist()
    png = cv2.imencode(".png", cv2.cvtColor(value, cv2.COLOR_RGB2BGR))[1]
    return base64.b64encode(png.tobytes()).decode()


def restored(entry: list[float] | str, like: np.ndarray) -> np.ndarray:
    """What `kept` was given; `like` is another row of the column.

    Raises:
        DataError: it is not of the column's shape.
    """
    if isinstance(entry, str):
        image = cv2.imdecode(np.frombuffer(base64.b64decode(entry), np.uint8), cv2.IMREAD_COLOR)
        value = None if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    else:
        value = np.asarray(entry, like.dtype)
    if value is None or value.size != like.size:
        raise DataError("its final observation is of another shape; record the dataset again")
    return value.reshape(like.shape)
