"""Everything that cannot be converted is refused in one sentence."""

from __future__ import annotations

import json
import multiprocessing
import resource
import shutil

import h5py
import numpy as np
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
