"""What a LeRobotDataset v3 says about itself in `meta/`, read and checked."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pld_ray.data import lerobot_format as v3
from pld_ray.data.errors import DataError

NOT_FINALIZED = "the process that wrote it must call finalize(), write it again"


def read_info(root: pathlib.Path) -> dict[str, Any]:
    """`meta/info.json`.

    Raises:
        DataError: it is missing, of another version, or lacks what reading the dataset needs.
    """
    path = root / v3.INFO_PATH
    try:
        info = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(
            f"{root} is no LeRobotDataset, {v3.INFO_PATH} is missing; give the folder that holds "
            "data/ and meta/"
        ) from None
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if not isinstance(info, dict):
        raise damaged(path, f"it holds {json.dumps(info):.20}, need names and values")
    version = str(info.get("codebase_version"))
    if not version.startswith("v3."):
        raise DataError(
            f"{root} is a LeRobotDataset {version}, need v3; convert it with "
            "lerobot.scripts.convert_dataset_v21_to_v30"
        )
    if wrong := wrong_with_info(info):
        raise damaged(path, wrong)
    return info


def wrong_with_info(info: Mapping[str, Any]) -> str | None:
    """What is missing in `info.json` or of no use, None if all is well."""
    fps: Any = info.get("fps")
    total, features = info.get("total_episodes"), info.get("features")
    if type(fps) not in (int, float) or not 0 < fps < math.inf:
        return f"fps is {fps!r}, need a number above 0"
    if type(total) is not int:
        return f"total_episodes is {total!r}, need a whole number"
    if not isinstance(features, dict):
        return "features is missing or no table of names"
    for name, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            return f"features: {name} has no dtype"
        shape = feature.get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            return f"features: {name} has shape {shape!r}, need whole numbers above 0"
        needed = {"image": "data_path", "video": "video_path"}.get(feature["dtype"])
        if needed and not isinstance(info.get(needed), str):
            return f"{needed} is missing, and {name} is found by it"
    return None


def read_episodes(root: pathlib.Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `meta/episodes`, without statistics, ascending.

    Raises:
        DataError: a file cannot be read, rows are missing, or one lacks what reading needs.
    """
    needed = ["episode_index", "length"]
    for name, feature in info["features"].items():
        if feature["dtype"] == "image":
            needed += ["data/chunk_index", "data/file_index"]
        elif feature["dtype"] == "video":
            places = ("chunk_index", "file_index", "from_timestamp")
            needed += [f"videos/{name}/{place}" for place in places]
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        try:
            names = [n for n in pq.read_schema(path).names if not n.startswith("stats/")]
            found = pq.read_table(path, columns=names).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(path, error) from None
        for row in found:
            if wrong := wrong_with_row(row, needed):
                raise damaged(path, wrong)
            if row["episode_index"] in rows:
                raise damaged(path, f"episode {row['episode_index']} is listed twice")
            rows[row["episode_index"]] = row
    if not rows or len(rows) != info["total_episodes"]:
        raise DataError(
            f"{root} lists {len(rows)} of {info['total_episodes']} episodes: {NOT_FINALIZED}"
        )
    return [rows[index] for index in sorted(rows)]


def wrong_with_row(row: Mapping[str, Any], needed: list[str]) -> str | None:
    """What is missing in an episode's row, None if all is well."""
    for name in needed:
        value = row.get(name)
        if type(value) is not int and not (type(value) is float and name.endswith("timestamp")):
            return f"episode {row.get('episode_index')} has {name} {value!r}, need a number"
    if row["length"] < 1:
        return f"episode {row['episode_index']} has length {row['length']}"
    if not isinstance(row.get("tasks"), list | None):
        return f"episode {row['episode_index']} has tasks {row['tasks']!r}, need a list"
    return None


def damaged(path: pathlib.Path, what: str) -> DataError:
    """What is raised for a file, or a folder of them, that does not hold what it should."""
    return DataError(f"{path} is damaged ({what}); fetch the dataset again")


def unreadable(path: pathlib.Path, error: Exception, names: Sequence[str] = ()) -> DataError:
    """What is raised for a Parquet file that does not let these columns be read."""
    with contextlib.suppress(pa.ArrowInvalid, OSError):
        if missing := [name for name in names if name not in pq.read_schema(path).names]:
            return damaged(path, f"it has no column {', '.join(missing)}")
    return DataError(f"{path} is unreadable ({str(error).splitlines()[0]}): {NOT_FINALIZED}")
