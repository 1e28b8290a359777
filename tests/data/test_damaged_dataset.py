"""A LeRobotDataset that is damaged is refused in one sentence, which names the file."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pld_ray import cli
from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError


def test_a_folder_that_is_no_finished_dataset(dataset_root, tmp_path):
    with pytest.raises(DataError, match=r"is no LeRobotDataset, meta/info\.json is missing"):
        Dataset(tmp_path)
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    whole = episodes.read_bytes()
    episodes.write_bytes(whole[:-50])
    with pytest.raises(DataError, match=r"file-000\.parquet is unreadable .*must call finalize"):
        Dataset(root)
    episodes.unlink()
    with pytest.raises(DataError, match="lists 0 of 3 episodes: the process that wrote it must"):
        Dataset(root)
    episodes.write_bytes(whole)
    data = root / "data/chunk-000/file-000.parquet"
    data.write_bytes(data.read_bytes()[:500])
    with pytest.raises(DataError, match=r"is unreadable .*must call finalize"):
        Dataset(root).columns(["action"])
    data.unlink()
    with pytest.raises(DataError, match="data has 0 of 18 frames"):
        Dataset(root).columns(["action"])
    with pytest.raises(DataError, match=r"has no next\.truncated, only observation\.state"):
        Dataset(root).columns(["next.truncated"])
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    with pytest.raises(DataError, match=r"is a LeRobotDataset v2\.1, need v3; convert it"):
        Dataset(root)
    (root / "meta/info.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        Dataset(root)


def told(**changes):
    """Change `info.json`; None takes an entry away."""

    def spoil(root):
        path = root / "meta/info.json"
        info = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in info.items() if v is not None}))

    return spoil


def declared(**changes):
    """Change what `info.json` says of `action`."""

    def spoil(root):
        features = json.loads((root / "meta/info.json").read_text())["features"]
        features["action"] |= changes
        told(features=features)(root)

    return spoil


def column(folder, name, change):
    """Change a column of the only file of a folder; None takes it away."""

    def spoil(root):
        path = root / folder / "chunk-000/file-000.parquet"
        table = pq.read_table(path)
        values = change(table[name].to_pylist())
        index = table.column_names.index(name)
        table = table.remove_column(index)
        pq.write_table(
            table if values is None else table.add_column(index, name, pa.array(values)), path
        )

    return spoil


ACTION, SUCCESS = ("data", "action"), ("data", "next.success")
LENGTH, INDEX = ("meta/episodes", "length"), ("meta/episodes", "episode_index")
DAMAGES = {
    "list": (lambda root: (root / "meta/info.json").write_text("[]"), r"it holds \[\], need names"),
    "null": (lambda root: (root / "meta/info.json").write_text("null"), "it holds null, need"),
    "no fps": (told(fps=None), r"info\.json is damaged \(fps is None, need a number above 0\)"),
    "fps": (told(fps="20"), "fps is '20', need a number above 0"),
    "endless": (told(fps=float("inf")), "fps is inf, need a number above 0"),
    "total": (told(total_episodes="3"), "total_episodes is '3', need a whole number"),
    "features": (told(features=[]), "features is missing or no table"),
    "no dtype": (declared(dtype=None), r"info\.json is damaged \(features: action has no dtype"),
    "shape": (declared(shape=14), r"action has shape 14, need whole numbers above 0\); fetch"),
    "path": (told(data_path=None), r"data_path is missing, and observation\.images\.cam_"),
    "no length": (column(*LENGTH, lambda v: None), r"file-000\.parquet is damaged \(episode 0 has"),
    "null length": (column(*LENGTH, lambda v: [None, *v[1:]]), "episode 0 has length None, need a"),
    "negative": (column(*LENGTH, lambda v: [-6, 19, 5]), "episode 0 has length -6"),
    "no index": (column(*INDEX, lambda v: None), "has episode_index None, need a number"),
    "same index": (column(*INDEX, lambda v: [1, 1, 2]), "episode 1 is listed twice"),
    "words": (column("meta/episodes", "tasks", lambda v: ["x"] * 3), "has tasks 'x', need a list"),
    "file": (
        column("meta/episodes", "data/file_index", lambda v: None),
        "episode 0 has data/file_index None, need a number",
    ),
    "lengths": (column(*LENGTH, lambda v: [5, 8, 5]), "6 frames of episode 0, .* lists 5"),
    "other episode": (
        column("data", "episode_index", lambda v: [9] * 18),
        r"/data is damaged \(it has 0 frames of episode 0, meta/episodes lists 6\); fetch",
    ),
    "nowhere": (
        column("data", "episode_index", lambda v: [*v[:-1], None]),
        "it has 4 frames of episode 2, meta/episodes lists 5",
    ),
    "same frame": (
        column("data", "frame_index", lambda v: [0] * 18),
        "frame_index goes from 0 to 0 in episode 0",
    ),
    "no column": (column(*ACTION, lambda v: None), r"parquet is damaged \(it has no column action"),
    "ragged": (
        column(*ACTION, lambda v: [*v[:4], v[4][:3], *v[5:]]),
        r"file-000\.parquet is damaged \(action has 3 values in row 4, meta/info\.json says 14",
    ),
    "narrow": (declared(shape=[3]), r"action has 14 values in row 0, meta/info\.json says 3"),
    "nested": (
        column(*ACTION, lambda v: [[row] for row in v]),
        "action holds list.*only numbers and vectors",
    ),
    "text": (
        column(*SUCCESS, lambda v: ["no"] * 18),
        r"next\.success holds string, and only numbers",
    ),
    "empty": (
        column(*SUCCESS, lambda v: [None, *v[1:]]),
        r"next\.success has empty rows",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_dataset_is_one_sentence(case, dataset_root, tmp_path):
    spoil, said = DAMAGES[case]
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    spoil(root)
    with pytest.raises(DataError, match=said) as refused:
        Dataset(root).columns(["action", "next.success"])
    assert str(root) in str(refused.value)


def test_images_that_are_not_where_their_episode_is_listed(dataset_root, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    column(*LENGTH, lambda v: [5, 8, 5])(root)
    column("data", "episode_index", lambda v: [0] * 5 + [1] * 8 + [2] * 5)(root)
    dataset = Dataset(root)
    dataset.images(0, "observation.images.cam_high", [4])
    column("data", "episode_index", lambda v: [0] * 6 + [1] * 7 + [2] * 5)(root)
    with pytest.raises(DataError, match=r"parquet is damaged \(it has 6 frames of episode 0, meta"):
        dataset.images(0, "observation.images.cam_high", [4])


def test_rows_of_several_files_may_lie_in_any_order(dataset_root, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    expected = Dataset(root).columns(["action", "next.success"])
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(10), path)
    pq.write_table(table.slice(0, 10), path.with_name("file-001.parquet"))
    for name, values in Dataset(root).columns(["action", "next.success"]).items():
        np.testing.assert_array_equal(values, expected[name])


def test_names_of_another_kind_are_numbers(dataset_root, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    declared(names=7)(root)
    dataset = Dataset(root)
    assert (dataset.shape("action"), dataset.names("action")[:2]) == ((14,), ["0", "1"])


def test_norm_stats_of_what_is_not_finite(dataset_root, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(dataset_root, root)
    column(*ACTION, lambda v: [*v[:8], [np.inf, *v[8][1:]], *v[9:]])(root)
    assert cli.main(["norm-stats", str(root)]) == 2
    said = f"{root}: action is not finite in episode 1, frame 2; leave the episode out"
    assert said in capsys.readouterr().err
    assert not (root / "norm_stats.json").exists()
    assert cli.main(["norm-stats", str(root), f"--output={tmp_path}"]) == 2  # before it computes
    said = f"{tmp_path} is a folder: name the file, as in --output={tmp_path}/norm_stats.json"
    assert said in capsys.readouterr().err
