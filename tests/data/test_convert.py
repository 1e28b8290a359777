"""What comes out of a conversion, against what was recorded."""

from __future__ import annotations

import json

import cv2
import h5py
import numpy as np
import pytest
from aloha_files import CAMERAS, HEIGHT, WIDTH, encode, picture, write_episode, write_folder

from pld_ray.data import joint_convention
from pld_ray.data.aloha_file import MOTORS, read_layout
from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError

LENGTHS = [6, 7, 5]
SOURCES = ["score_5/episode_0.hdf5", "score_5/episode_1.hdf5", "score_1/episode_0.hdf5"]


def test_states_actions_and_images_come_back_as_they_were_recorded(recordings, dataset_root):
    dataset = Dataset(dataset_root)
    assert dataset.lengths.tolist() == LENGTHS
    assert [row["source"] for row in dataset.episodes] == SOURCES
    assert dataset.names("action") == MOTORS
    assert dataset.names("action")[0] == "left_waist"
    kept = {
        "observation.state": "observations/qpos",
        "observation.velocity": "observations/qvel",
        "observation.effort": "observations/effort",
        "action": "action",
    }
    columns = dataset.columns(list(kept))
    for episode, (source, first) in enumerate(zip(SOURCES, dataset.first_frames, strict=True)):
        with h5py.File(recordings / source) as file:
            for name, key in kept.items():
                rows = columns[name][first : first + LENGTHS[episode]]
                assert np.array_equal(rows, file[key][:].astype(np.float32))
            for camera in CAMERAS:
                frames = range(LENGTHS[episode])
                images = dataset.images(episode, f"observation.images.{camera}", frames)
                assert np.array_equal(np.stack(images), file[f"observations/images/{camera}"][:])


def test_a_success_is_rewarded_on_its_last_frame(dataset_root):
    dataset = Dataset(dataset_root)
    columns = dataset.columns(["next.reward", "next.done", "next.success", "start"])
    last = np.zeros(18, bool)
    last[[5, 12, 17]] = True
    assert columns["next.reward"].tolist() == [float(k in (5, 12)) for k in range(18)]
    assert np.array_equal(columns["next.done"], last)
    assert columns["next.success"].tolist() == [k in (5, 12) for k in range(18)]
    assert columns["start"].all()
    assert dataset.successes().tolist() == [True, True, False]
    assert [row["score"] for row in dataset.episodes] == [1.0, 1.0, 0.0]


def test_index_columns(dataset_root):
    columns = Dataset(dataset_root).columns(
        ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    )
    assert columns["index"].tolist() == list(range(18))
    assert columns["episode_index"].tolist() == [0] * 6 + [1] * 7 + [2] * 5
    assert columns["frame_index"].tolist() == [*range(6), *range(7), *range(5)]
    assert np.allclose(columns["timestamp"][:3], [0, 0.02, 0.04])
    assert not columns["task_index"].any()


def test_scores_rewards_and_episodes_can_be_chosen(recordings, convert_folder, tmp_path):
    scores = {"score_1": 0.25, "score_5": 2.0}
    convert_folder(recordings, tmp_path / "out", scores=scores, reward="every_frame", fps=30)
    dataset = Dataset(tmp_path / "out")
    reward = dataset.columns(["next.reward"])["next.reward"]
    assert reward.tolist() == [0.25] * 5 + [2.0] * 13
    assert dataset.successes().tolist() == [True, True, True]
    assert dataset.fps == 30

    convert_folder(recordings, tmp_path / "one", episodes="score_1/0:3,1")
    assert [row["source"] for row in Dataset(tmp_path / "one").episodes] == SOURCES[1:]
    with pytest.raises(DataError, match=r"--episodes=7 selects"):
        convert_folder(recordings, tmp_path / "none", episodes="7")


def test_episodes_that_lie_in_the_folder_itself(convert_folder, tmp_path):
    write_episode(tmp_path / "in/episode_10.hdf5", 3)
    write_episode(tmp_path / "in/episode_9.hdf5", 4)
    convert_folder(tmp_path / "in", tmp_path / "out", scores={".": 1.0})
    sources = [row["source"] for row in Dataset(tmp_path / "out").episodes]
    assert sources == ["episode_9.hdf5", "episode_10.hdf5"]


def test_recorded_jpegs_are_kept_byte_by_byte(convert_folder, tmp_path):
    write_folder(tmp_path / "in", jpeg=True)
    convert_folder(tmp_path / "in", tmp_path / "out")
    import pyarrow.parquet as pq

    stored = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")
    files = stored["observation.images.cam_high"].to_pylist()
    assert files[3]["bytes"] == encode(picture(3)).tobytes()
    assert files[3]["path"] == "frame-000003.jpg"


@pytest.mark.parametrize("jpeg", [False, True])
@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("mode", ["image", "video"])
def test_a_red_object_stays_red(convert_folder, tmp_path, jpeg, bgr, mode):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5", 6, jpeg=jpeg, bgr=bgr)
    convert_folder(tmp_path / "in", tmp_path / "out", color="bgr" if bgr else "rgb", mode=mode)
    image = Dataset(tmp_path / "out").images(0, "observation.images.cam_high", [4])[0]
    red, green, blue = image[20:28, 8:16].reshape(-1, 3).mean(0)
    assert red > 180
    assert max(green, blue) < 70
    error = np.square(image.astype(float) - picture(4)).mean()
    assert error < (1 if mode == "image" and not jpeg else 255**2 / 1000)  # 30 dB


def test_the_file_may_say_that_its_channels_are_exchanged(convert_folder, tmp_path):
    path = write_episode(tmp_path / "in/score_5/episode_0.hdf5", bgr=True)
    with h5py.File(path, "a") as file:
        file["observations/images"].attrs["encoding"] = "bgr8"
    convert_folder(tmp_path / "in", tmp_path / "out", color="auto")
    image = Dataset(tmp_path / "out").images(0, "observation.images.cam_high", [0])[0]
    assert np.array_equal(image, picture(0))
    sample = cv2.imread(str(tmp_path / "out/color_sample.png"))[..., ::-1]
    square = sample[28 + 100 : 28 + 140, 20:60].reshape(-1, 3).mean(0)  # as converted
    assert square[0] > 200
    other = sample[2 * 28 + 240 + 100 : 2 * 28 + 240 + 140, 20:60].reshape(-1, 3).mean(0)
    assert other[2] > 200


def test_steps_without_an_image_show_the_latest_one(convert_folder, tmp_path):
    path = write_episode(tmp_path / "in/score_5/episode_0.hdf5", 7, image_steps=[0, 3, 4])
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.array([1, 0, 0, 1, 1, 0, 0])
    path = write_episode(tmp_path / "in/score_5/episode_1.hdf5", 7, image_steps=[0, 5], jpeg=True)
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.array([0, 5])
    convert_folder(tmp_path / "in", tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    images = dataset.images(0, "observation.images.cam_high", range(7))
    for image, seen in zip(images, [0, 0, 0, 3, 4, 4, 4], strict=True):
        assert np.array_equal(image, picture(seen))
    start = dataset.columns(["start"])["start"]
    assert np.flatnonzero(start).tolist() == [0, 3, 4, 7, 12]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"columns: [010]", r"010 in line 1 would be a number in base 8 or 60"),
        (b"robot_type: \xe9", "is not text in UTF-8"),
        (b"- 1", "must hold a mapping"),
        (b"", r"unknown \[\]; its keys are state"),
        (b"{7: 1, colums: [0]}", r"unknown \['7', 'colums'\]; its keys are state"),
    ],
)
def test_a_mapping_file_is_read_as_any_other(content, message, tmp_path):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_bytes(content)
    with pytest.raises(DataError, match=rf"--mapping=\S*mapping.yaml.*{message}"):
        read_layout(str(mapping))


def test_a_mapping_file_names_other_arms_and_cameras(convert_folder, tmp_path):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5", 4, cameras=("top",), motors=8)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(
        "cameras: {front: /observations/images/top}\nmotors: [shoulder, gripper]\n"
        "columns: [5, 1]\nvelocity: null\nrobot_type: one_arm\n"
    )
    convert_folder(tmp_path / "in", tmp_path / "out", layout=read_layout(str(mapping)))
    dataset = Dataset(tmp_path / "out")
    with h5py.File(tmp_path / "in/score_5/episode_0.hdf5") as file:
        expected = file["observations/qpos"][:][:, [5, 1]].astype(np.float32)
    assert np.array_equal(dataset.columns(["observation.state"])["observation.state"], expected)
    assert dataset.cameras == ["observation.images.front"]
    assert "observation.velocity" not in dataset.features
    assert dataset.names("action") == ["shoulder", "gripper"]
    assert dataset.info["robot_type"] == "one_arm"

    mapping.write_text("camera: {}\n")
    with pytest.raises(DataError, match=r"unknown \['camera'\]; its keys are state, action"):
        read_layout(str(mapping))


def test_velocity_is_left_out_where_one_episode_lacks_it(convert_folder, tmp_path):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5")
    write_episode(tmp_path / "in/score_5/episode_1.hdf5", extras=False)
    convert_folder(tmp_path / "in", tmp_path / "out")
    assert "observation.velocity" not in Dataset(tmp_path / "out").features


def test_joints_as_openpi_has_them(recordings, convert_folder, tmp_path):
    # a gripper at 0.5 opens 0.03822 m: asin((.022^2 + .03822^2 - .036^2) / (2 * .022 * .03822))
    # = asin(.385786) = .396059 rad, (.396059 - .5476) / 1.082 = -.140056
    state = joint_convention.openpi_state(np.full((1, 14), 0.5))
    signs = np.array([1, -1, -1, 1, 1, 1, 0] * 2)
    assert np.allclose(state[0][signs != 0], 0.5 * signs[signs != 0])
    assert np.allclose(state[0][[6, 13]], -0.140056, atol=1e-6)
    # -.6213 + .5 * 2.1123 - .5476
    action = joint_convention.openpi_action(np.full((1, 14), 0.5))
    assert np.allclose(action[0][[6, 13]], -0.11275)
    convert_folder(recordings, tmp_path / "out", joint_convention="openpi")
    with h5py.File(recordings / SOURCES[0]) as file:
        expected = joint_convention.openpi_action(file["action"][:]).astype(np.float32)
        velocity = file["observations/qvel"][:][:, 1]
    columns = Dataset(tmp_path / "out").columns(["action", "observation.velocity"])
    assert np.array_equal(columns["action"][:6], expected)
    assert np.allclose(columns["observation.velocity"][:6, 1], -velocity)


def test_two_processes_write_what_one_writes(recordings, dataset_root, convert_folder, tmp_path):
    convert_folder(recordings, tmp_path / "out", num_workers=2)
    for path in ("meta/stats.json", "meta/info.json"):
        ours, theirs = (
            json.loads((r / path).read_text()) for r in (tmp_path / "out", dataset_root)
        )
        assert ours == theirs
    data = "data/chunk-000/file-000.parquet"
    assert (tmp_path / "out" / data).read_bytes() == (dataset_root / data).read_bytes()


def test_shapes_of_the_pictures_are_height_width_channels(dataset_root):
    feature = Dataset(dataset_root).features["observation.images.cam_high"]
    assert feature["shape"] == [HEIGHT, WIDTH, 3]
    assert feature["names"] == ["height", "width", "channels"]
