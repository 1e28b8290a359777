"""The LeRobotDataset v3 format: names, paths, Arrow schema, `info.json`.

Source: `lerobot.datasets` 0.6 (`feature_utils`, `dataset_metadata`, `dataset_writer`).
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pyarrow as pa

CODEBASE_VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"
INFO_PATH, STATS_PATH, TASKS_PATH = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
CHUNK_FILES = 1000
DATA_FILE_MB, VIDEO_FILE_MB = 100, 200

Features = dict[str, dict[str, Any]]

INDEX_FEATURES: Features = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
"""Columns that every dataset ends with."""


def vector(names: list[str]) -> dict[str, Any]:
    """A float32 vector, one name a dimension."""
    return {"dtype": "float32", "shape": [len(names)], "names": list(names)}


def scalar(dtype: str) -> dict[str, Any]:
    """A number or a flag per frame."""
    return {"dtype": dtype, "shape": [1], "names": None}


def camera(mode: str, height: int, width: int) -> dict[str, Any]:
    """An RGB camera, `mode` image or video."""
    return {"dtype": mode, "shape": [height, width, 3], "names": ["height", "width", "channels"]}


def arrow_schema(features: Features) -> pa.Schema:
    """Of the Parquet files; videos have no column. Images are encoded files: {bytes, path}."""
    fields: list[pa.Field] = []
    described: dict[str, Any] = {}
    for name, feature in features.items():
        shape = tuple(feature["shape"])
        if feature["dtype"] == "video":
            continue
        if feature["dtype"] == "image":
            kind: pa.DataType = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            described[name] = {"_type": "Image"}
        else:
            kind = pa.type_for_alias(feature["dtype"])
            value = {"dtype": feature["dtype"], "_type": "Value"}
            described[name] = value
            if shape != (1,):
                kind = pa.list_(kind, shape[0])
                described[name] = {"feature": value, "length": shape[0], "_type": "List"}
        fields.append(pa.field(name, kind))
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": described}})})


def info_json(
    features: Features, fps: int, robot_type: str | None, num_episodes: int, num_frames: int
) -> dict[str, Any]:
    """Contents of `meta/info.json`."""
    has_videos = any(feature["dtype"] == "video" for feature in features.values())
    return {
        "codebase_version": CODEBASE_VERSION,
        "fps": fps,
        "features": features,
        "total_episodes": num_episodes,
        "total_frames": num_frames,
        "total_tasks": 1,
        "chunks_size": CHUNK_FILES,
        "data_files_size_in_mb": DATA_FILE_MB,
        "video_files_size_in_mb": VIDEO_FILE_MB,
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if has_videos else None,
        "robot_type": robot_type,
        "splits": {"train": f"0:{num_episodes}"},
    }


def write_json(path: pathlib.Path, value: Any) -> None:
    """Replace a file in one step: whoever reads it sees the old or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=2))
    os.replace(partial, path)
