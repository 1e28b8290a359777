"""From parts to one LeRobotDataset."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pld_ray.data import lerobot_format as v3
from pld_ray.data.episode_stats import Stats, aggregate, as_arrays, as_lists, vector_stats
from pld_ray.data.parts import DATA_FILE, read_description
from pld_ray.data.video_files import concatenate, describe

MEGABYTE = 1 << 20


def assemble(
    parts: Sequence[pathlib.Path],
    root: pathlib.Path,
    features: v3.Features,
    fps: int,
    task: str,
    robot_type: str | None,
    on_episode: Callable[[int], None] = lambda length: None,
) -> None:
    """Write the dataset of these parts, in their order, into the new folder `root`.

    Args:
        parts: at least one.
        root: must not exist.
        features: the parts' own and the index columns.
        fps: frames per second.
        task: what is done in every episode.
        robot_type: for `info.json`.
        on_episode: called with the length of each that has been written.
    """
    root.mkdir(parents=True)
    episodes = [read_description(part) for part in parts]
    features = {name: dict(feature) for name, feature in features.items()}
    rows = write_data(parts, episodes, root, features, on_episode)
    for name, feature in features.items():
        if feature["dtype"] == "video":
            write_videos(name, parts, episodes, rows, root, fps)
            path = v3.VIDEO_PATH.format(video_key=name, chunk_index=0, file_index=0)
            feature["info"] = describe(root / path)
    write_meta(episodes, rows, root, features, fps, task, robot_type)


def write_data(
    parts: Sequence[pathlib.Path],
    episodes: Sequence[dict[str, Any]],
    root: pathlib.Path,
    features: v3.Features,
    on_episode: Callable[[int], None],
) -> list[dict[str, Any]]:
    """The Parquet files, a row group an episode; returns a row of metadata for each."""
    schema = v3.arrow_schema(features)
    rows: list[dict[str, Any]] = []
    writer: pq.ParquetWriter | None = None
    number, written, first = -1, 0, 0
    for index, (part, episode) in enumerate(zip(parts, episodes, strict=True)):
        size, length = (part / DATA_FILE).stat().st_size, episode["length"]
        if writer is None or written + size > v3.DATA_FILE_MB * MEGABYTE:
            if writer is not None:
                writer.close()
            number, written = number + 1, 0
            path = root / v3.DATA_PATH.format(**chunk_and_file(number))
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = pq.ParquetWriter(path, schema, compression="snappy")
        places = index_columns(length, index, first)
        episode["stats"] |= as_lists({k: vector_stats(v) for k, v in places.items()})
        table = pq.read_table(part / DATA_FILE)
        for name, values in places.items():
            table = table.append_column(name, pa.array(values))
        writer.write_table(table.select(schema.names).cast(schema), row_group_size=length)
        written += size
        place = {f"data/{key}": value for key, value in chunk_and_file(number).items()}
        bounds = {"dataset_from_index": first, "dataset_to_index": first + length}
        rows.append({"episode_index": index, "length": length, **place, **bounds})
        first += length
        on_episode(length)
    assert writer is not None
    writer.close()
    return rows


def index_columns(length: int, episode: int, first: int) -> dict[str, np.ndarray]:
    """What depends on an episode's place in the dataset."""
    return {
        "episode_index": np.full(length, episode, np.int64),
        "index": np.arange(first, first + length, dtype=np.int64),
        "task_index": np.zeros(length, np.int64),
    }


def chunk_and_file(number: int) -> dict[str, int]:
    """Where the n-th file lies."""
    chunk, file = divmod(number, v3.CHUNK_FILES)
    return {"chunk_index": chunk, "file_index": file}


def write_videos(
    name: str,
    parts: Sequence[pathlib.Path],
    episodes: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    root: pathlib.Path,
    fps: int,
) -> None:
    """One camera's videos, several episodes a file, and where in it each begins and ends."""
    files: list[list[int]] = []
    size = 0
    for index, part in enumerate(parts):
        grown = size + (part / f"{name}.mp4").stat().st_size
        if not files or grown > v3.VIDEO_FILE_MB * MEGABYTE:
            files.append([])
            grown -= size
        files[-1].append(index)
        size = grown
    for number, members in enumerate(files):
        place = chunk_and_file(number)
        target = root / v3.VIDEO_PATH.format(video_key=name, **place)
        concatenate([parts[index] / f"{name}.mp4" for index in members], target)
        frames = 0
        for index in members:
            begin, frames = frames, frames + episodes[index]["length"]
            span = {"from_timestamp": begin / fps, "to_timestamp": frames / fps}
            rows[index].update({f"videos/{name}/{k}": v for k, v in {**place, **span}.items()})


def write_meta(
    episodes: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    root: pathlib.Path,
    features: v3.Features,
    fps: int,
    task: str,
    robot_type: str | None,
) -> None:
    """Everything below `meta/`; `info.json` last, it makes the folder a dataset."""
    described = []
    for row, episode in zip(rows, episodes, strict=True):
        flat = {f"stats/{f}/{k}": v for f, s in episode["stats"].items() for k, v in s.items()}
        file = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        described.append({**row, "tasks": [task], **episode.get("columns", {}), **flat, **file})
    path = root / v3.EPISODES_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(described), path)
    tasks = pd.DataFrame({"task_index": [0]}, index=pd.Index([task], name="task"))
    tasks.to_parquet(root / v3.TASKS_PATH)
    total: dict[str, Stats] = aggregate([as_arrays(e["stats"]) for e in episodes])
    v3.write_json(root / v3.STATS_PATH, as_lists(total))
    num_frames = sum(episode["length"] for episode in episodes)
    info = v3.info_json(features, fps, robot_type, len(episodes), num_frames)
    v3.write_json(root / v3.INFO_PATH, info)


def move_into_place(staged: pathlib.Path, root: pathlib.Path) -> None:
    """Make a finished dataset visible in `root`: `meta` comes last, it is what readers look for."""
    for name in ("data", "videos", "meta"):
        if (staged / name).exists():
            if (root / name).exists():
                shutil.rmtree(root / name)
            (staged / name).rename(root / name)
    shutil.rmtree(staged)
