"""Parts: one episode a folder, written apart from all others and joined into a dataset at the end.

A part is `data.parquet` (one row group), a video per video camera and `episode.json`; the folder
gets its name when it is whole, so a part that exists is a finished one.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, Protocol

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pld_ray.data.episode_stats import PixelCounts, as_lists, sampled_frames, vector_stats
from pld_ray.data.lerobot_format import INDEX_FEATURES, Features, arrow_schema
from pld_ray.data.video_files import VideoEncoder

EPISODE_FILE, DATA_FILE = "episode.json", "data.parquet"
PARTIAL = ".partial-"
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
"""What `os.rename` says of a folder that is not empty: by the file system, one or the other."""
SLAB = 64  # images that are encoded before they become one Arrow chunk


class Camera(Protocol):
    """Images of one camera in one episode, one for each frame."""

    def pixels(self, frame: int) -> np.ndarray:
        """RGB, [H, W, 3] uint8."""

    def encoded(self, frame: int) -> tuple[bytes, str] | None:
        """The image as a file that is kept as it is, and its suffix; None: it is encoded anew."""


def write_part(
    folder: pathlib.Path,
    features: Features,
    columns: Mapping[str, np.ndarray],
    cameras: Mapping[str, Camera],
    fps: int,
    about: Mapping[str, Any],
) -> None:
    """Write an episode of T frames; does nothing if it is there already.

    Args:
        folder: of the part.
        features: of the dataset.
        columns: every feature that is no camera, [T] or [T, D].
        cameras: one for each feature that is a camera.
        fps: frames per second, for `timestamp`.
        about: further entries of `episode.json`.
    """
    if folder.exists():
        return
    length = len(next(iter(columns.values())))
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        frames = np.arange(length)
        columns = {**columns, "timestamp": (frames / fps).astype(np.float32), "frame_index": frames}
        stats = {name: vector_stats(values) for name, values in columns.items()}
        arrays = {name: column_array(values, features[name]) for name, values in columns.items()}
        for name, images in cameras.items():
            seen = PixelCounts()
            if features[name]["dtype"] == "video":
                encode_video(partial / f"{name}.mp4", images, features[name], length, fps, seen)
            else:
                arrays[name] = encode_images(images, length, seen)
            stats[name] = seen.stats()
        schema = arrow_schema({name: features[name] for name in features if name in arrays})
        table = pa.table([arrays[name] for name in schema.names], schema=schema)
        pq.write_table(table, partial / DATA_FILE, compression="snappy")
        description = {"length": length, "stats": as_lists(stats), **about}
        (partial / EPISODE_FILE).write_text(json.dumps(description))
        os.rename(partial, folder)
    except OSError as error:
        if error.errno not in TAKEN:
            raise  # else an orphan of a killed conversion has finished the same part
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def column_array(values: np.ndarray, feature: Mapping[str, Any]) -> pa.Array:
    """A numeric column as Arrow keeps it."""
    dtype = np.dtype(feature["dtype"])
    flat = pa.array(np.ascontiguousarray(values.reshape(-1), dtype))
    if list(feature["shape"]) == [1]:
        return flat
    return pa.FixedSizeListArray.from_arrays(flat, feature["shape"][0])


def encode_images(images: Camera, length: int, seen: PixelCounts) -> pa.ChunkedArray:
    """PNG files, or the source's own, as an Arrow column."""
    sampled = set(sampled_frames(length).tolist())
    chunks = []
    for start in range(0, length, SLAB):
        files, names = [], []
        for frame in range(start, min(start + SLAB, length)):
            kept = images.encoded(frame)
            if kept is None or frame in sampled:
                pixels = images.pixels(frame)
                if frame in sampled:
                    seen.add(pixels)
            if kept is None:
                bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
                kept = cv2.imencode(".png", bgr)[1].tobytes(), "png"
            files.append(kept[0])
            names.append(f"frame-{frame:06d}.{kept[1]}")
        chunks.append(pa.StructArray.from_arrays([pa.array(files), pa.array(names)], IMAGE_FIELDS))
    return pa.chunked_array(chunks)


IMAGE_FIELDS = ["bytes", "path"]


def encode_video(
    path: pathlib.Path,
    images: Camera,
    feature: Mapping[str, Any],
    length: int,
    fps: int,
    seen: PixelCounts,
) -> None:
    """All images of an episode as one MP4 file."""
    sampled = set(sampled_frames(length).tolist())
    encoder = VideoEncoder(path, fps, *feature["shape"][:2])
    for frame in range(length):
        pixels = images.pixels(frame)
        if frame in sampled:
            seen.add(pixels)
        encoder.add(pixels)
    encoder.close()


def read_description(folder: pathlib.Path) -> dict[str, Any]:
    """A part's `episode.json`."""
    return json.loads((folder / EPISODE_FILE).read_text())


def stored_features(features: Features) -> Features:
    """A dataset's own features and the index columns that every dataset has."""
    return {**features, **INDEX_FEATURES}
