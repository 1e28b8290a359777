"""Everything that cannot be converted or read is refused in one sentence."""

from __future__ import annotations

import json
import multiprocessing
import resource
import shutil

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aloha_files import write_episode, write_folder

from pld_ray import cli
from pld_ray.data.aloha_file import Layout, read_layout
from pld_ray.data.aloha_part import Settings
from pld_ray.data.conversion import convert
from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError


def delete(key):
    def spoil(path):
        with h5py.File(path, "a") as file:
            del file[key]

    return spoil


def replace(key, change):
    def spoil(path):
        with h5py.File(path, "a") as file:
            values = file[key][:] if key in file else None
            if values is not None:
                del file[key]
            file[key] = change(values)

    return spoil


def with_nan(values):
    values[2, 5] = np.nan
    return values


def cut(path):
    path.write_bytes(path.read_bytes()[:3000])


def no_jpeg(path):
    with h5py.File(path, "a") as file:
        file["observations/images/cam_high"][3, :] = 7


def cut_jpeg(path):
    with h5py.File(path, "a") as file:
        rows = file["observations/images/cam_high"]
        rows[3, rows.shape[1] // 3 :] = 0


CASES = {
    "missing": (delete("action"), r"has no /action, only /observations/effort, .*--mapping"),
    "camera": (delete("observations/images/cam_high"), r"has no /observations/images/cam_high"),
    "lengths": (replace("action", lambda a: a[:-1]), r"qpos has 7 steps but /action has 6; cut"),
    "images": (
        replace("observations/images/cam_high", lambda v: v[:4]),
        r"cam_high has 4 images but /action has 7 steps",
    ),
    "empty": (replace("action", lambda a: a[:0]), r"has no steps; leave it out"),
    "nan": (replace("action", with_nan), r"/action holds a NaN or an infinity at step 2; mend"),
    "text": (replace("action", lambda a: np.array([b"x"])), r"/action is \|S1\[1\], need numbers"),
    "motors": (replace("action", lambda a: a[:, :7]), r"7 columns but 14 motors are named; name"),
    "truncated": (cut, r"is cut short .*; copy or record it again"),
    "no hdf5": (lambda p: p.write_bytes(b"x" * 99), r"is no readable HDF5 file .*again"),
    "first image": (
        replace("image_indices", lambda _: np.array([2, 3, 4, 5, 6, 7])),
        r"image_indices must name ascending steps from 0 to 6",
    ),
    "no image yet": (
        replace("image_indices", lambda _: np.array([1, 2, 3, 4, 5])),
        r"its first image is of step 1, so that the steps before .*; cut the first 1 steps off",
    ),
    "starts": (replace("chunk_starts", lambda _: np.array([0, 9])), r"chunk_starts is neither"),
    "pixels": (
        replace("observations/images/cam_high", lambda v: v.astype(np.float32)),
        r"is float32\[7, 48, 64, 3\], need uint8",
    ),
    "jpeg": (no_jpeg, r"the image of step 3 in .*cam_high does not decode; record it again"),
    "cut jpeg": (cut_jpeg, r"the image of step 3 in .*cam_high does not decode"),
    "size": (
        replace("observations/images/cam_high", lambda v: v[:, :24]),
        r"its images are cam_high 24x64, .*convert episodes of one size at a time",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_a_file_and_what_to_do(case, convert_folder, tmp_path):
    spoil, message = CASES[case]
    write_folder(tmp_path / "in", jpeg="jpeg" in case)
    spoil(tmp_path / "in/score_5/episode_1.hdf5")
    with pytest.raises(DataError, match=message) as refused:
        convert_folder(tmp_path / "in", tmp_path / "out")
    assert "score_5/episode_1.hdf5" in str(refused.value)
    assert "--skip_bad" in str(refused.value)
    assert not (tmp_path / "out/meta").exists()

    outcome = convert_folder(tmp_path / "in", tmp_path / "out", skip_bad=True)
    assert list(outcome.left_out) == ["score_5/episode_1.hdf5"]
    saved = json.loads((tmp_path / "out/conversion_progress.json").read_text())
    assert saved["left_out"] == outcome.left_out
    sources = [row["source"] for row in Dataset(tmp_path / "out").episodes]
    assert sources == ["score_5/episode_0.hdf5", "score_1/episode_0.hdf5"]
    again = convert_folder(tmp_path / "in", tmp_path / "out", skip_bad=True)
    assert again.was_finished


def test_an_unknown_score_folder(convert_folder, tmp_path):
    write_folder(tmp_path / "in")
    write_episode(tmp_path / "in/score_3/episode_0.hdf5")
    with pytest.raises(DataError, match="no score is known for the folder 'score_3'; give it one"):
        convert_folder(tmp_path / "in", tmp_path / "out")
    outcome = convert_folder(tmp_path / "in", tmp_path / "out", skip_bad=True)
    assert list(outcome.left_out) == ["score_3"]


def test_files_that_would_share_a_part(convert_folder, tmp_path):
    write_episode(tmp_path / "in/pick/place-1.hdf5", seed=0)
    write_episode(tmp_path / "in/pick-place/1.hdf5", seed=1)
    scores = {"pick": 1.0, "pick-place": 0.0}
    said = r"pick/place-1.hdf5 and pick-place/1.hdf5 have the same size .*; rename one of them"
    with pytest.raises(DataError, match=said):
        convert_folder(tmp_path / "in", tmp_path / "out", scores=scores)
    assert not (tmp_path / "out").exists()
    (tmp_path / "in/pick-place/1.hdf5").rename(tmp_path / "in/pick-place/2.hdf5")
    assert convert_folder(tmp_path / "in", tmp_path / "out", scores=scores).num_episodes == 2


def test_a_camera_whose_videos_have_no_folder(convert_folder, tmp_path):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5")
    layout = Layout(cameras={"front/left": "/observations/images/cam_high"})
    with pytest.raises(DataError, match=r"--mode=video: the camera 'front/left' .*--mapping file"):
        convert_folder(tmp_path / "in", tmp_path / "out", layout=layout, mode="video")
    assert convert_folder(tmp_path / "in", tmp_path / "image", layout=layout).num_frames == 6


@pytest.mark.parametrize("columns", ["[a, b]", "3", "[0, 1.5]", "[true, false]"])
def test_columns_that_are_no_numbers(columns, tmp_path):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(f"motors: [shoulder, gripper]\ncolumns: {columns}\n")
    with pytest.raises(DataError, match=r"columns must be a list of whole numbers, as in \[0, 1"):
        read_layout(str(mapping))


def test_nothing_to_convert(convert_folder, tmp_path):
    with pytest.raises(DataError, match="is no folder"):
        convert_folder(tmp_path / "none", tmp_path / "out")
    with pytest.raises(DataError, match=r"has no episode_\*\.hdf5 in score_5, score_1"):
        convert_folder(tmp_path, tmp_path / "out")
    write_episode(tmp_path / "in/score_5/episode_0.hdf5").write_bytes(b"")
    with pytest.raises(DataError, match="no episode can be converted; the first: score_5/"):
        convert_folder(tmp_path / "in", tmp_path / "out", skip_bad=True)


def test_a_target_that_holds_something_else(recordings, dataset_root, convert_folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(dataset_root, other)
    (other / "conversion_progress.json").unlink()
    with pytest.raises(DataError, match="holds a dataset already; give another --root"):
        convert_folder(recordings, other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").touch()
    with pytest.raises(DataError, match="holds something else already"):
        convert_folder(recordings, tmp_path / "full")
    with pytest.raises(DataError, match=r"was begun with fps=50 and is now asked for 30"):
        convert_folder(recordings, dataset_root, fps=30)


def test_a_finished_dataset_is_not_silently_without_a_new_file(convert_folder, tmp_path):
    write_folder(tmp_path / "in")
    convert_folder(tmp_path / "in", tmp_path / "out")
    write_episode(tmp_path / "in/score_5/episode_7.hdf5")
    with pytest.raises(DataError, match=r"finished dataset already, without score_5/episode_7"):
        convert_folder(tmp_path / "in", tmp_path / "out")


def convert_on_a_small_disk(folder, root, largest_file, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    try:
        convert(folder, root, Settings("a/b", "fold"), Layout(), 1)
        answer.send("it was large enough")
    except DataError as error:
        answer.send(str(error))


def test_a_full_disk_keeps_what_is_done(convert_folder, tmp_path):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5", 12)
    write_episode(tmp_path / "in/score_5/episode_1.hdf5", 400)
    convert_folder(tmp_path / "in", tmp_path / "first", episodes="0")
    files = [path for path in (tmp_path / "first").rglob("*") if path.is_file()]
    enough = int(1.1 * max(path.stat().st_size for path in files))  # for the first episode
    ours, theirs = multiprocessing.Pipe()
    arguments = tmp_path / "in", tmp_path / "out", enough, theirs
    context = multiprocessing.get_context("fork")
    process = context.Process(target=convert_on_a_small_disk, args=arguments)
    process.start()
    assert ours.poll(60)
    message = ours.recv()
    process.join()
    assert message.startswith(f"{tmp_path}/out: file too large; make room for twice the size")
    parts = [path.name for path in (tmp_path / "out/.conversion/parts").iterdir()]
    assert [name[:17] for name in parts] == ["score_5-episode_0"]
    convert(tmp_path / "in", tmp_path / "out", Settings("a/b", "fold"), Layout(), 1)
    assert Dataset(tmp_path / "out").lengths.tolist() == [12, 400]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aloha"], "INPUT_DIR, --repo_id, --root are missing; usage: pld-ray convert"),
        (["hdf4", "in", "--repo_id=a/b", "--root=out"], "hdf4 cannot be read: give aloha"),
        (
            ["aloha", "in", "--root=out"],
            "--repo_id is missing; usage: pld-ray convert FORMAT INPUT_DIR",
        ),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--mode=gif"], "must be image or video"),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--fps=0"], "a whole number from 1 on"),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--score", "x"], "must be FOLDER=REWARD"),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--push_to_hub"], "needs HF_HUB_OFFLINE=0"),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--episodes=one"], "write 0,3,10:20"),
        (["aloha", "in", "--repo_id=a/b", "--root=out", "--mapping=no.yaml"], "give a YAML file"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_folder(tmp_path / "in")
    assert cli.main(["convert", *arguments]) == 2
    assert message in capsys.readouterr().err


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
