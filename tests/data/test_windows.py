"""Windows straight from a dataset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from aloha_files import picture, write_episode

from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError
from pld_ray.data.windows import DatasetWindows

HIGH = "observation.images.cam_high"


def test_a_success_ends_the_value_and_a_failure_is_cut(dataset_root):
    """Episodes of 6 and 7 frames end in success, the third one of 5 does not."""
    dataset = Dataset(dataset_root)
    columns = dataset.columns(["observation.state", "action"])
    windows = DatasetWindows(dataset)
    assert windows.ring.episode_lengths == [6, 7, 4]
    batch = windows.sample(400, 3, gamma=0.5)
    assert sorted(set(batch["frame"].tolist())) == [*range(13), *range(13, 17)]
    for i, frame in enumerate(batch["frame"].tolist()):
        first, steps, over = [(0, 6, True), (6, 7, True), (13, 4, False)][
            int(frame >= 6) + int(frame >= 13)
        ]
        m = min(3, steps - (frame - first))
        ends = frame - first + m == steps
        state = columns["observation.state"]
        assert np.array_equal(batch["observation"][i], state[frame])
        valid = batch["actions"][i][batch["valid"][i]]
        assert np.array_equal(valid, columns["action"][frame : frame + m])
        assert batch["reward"][i] == (0.5 ** (m - 1) if over and ends else 0.0)
        assert batch["mask"][i] == (0.0 if over and ends else 1.0)
        if not (over and ends):
            assert batch["next_frame"][i] == frame + m
            assert np.array_equal(batch["next_observation"][i], state[frame + m])
        assert batch["positive"][i] == (frame < 13)


@pytest.mark.parametrize("mode", ["image", "video"])
def test_images_at_both_ends_of_a_window(convert_folder, tmp_path, mode):
    write_episode(tmp_path / "in/score_5/episode_0.hdf5", 7)
    write_episode(tmp_path / "in/score_1/episode_0.hdf5", 9, 1)
    convert_folder(tmp_path / "in", tmp_path / "out", mode=mode)
    dataset = Dataset(tmp_path / "out")
    batch = DatasetWindows(dataset, cameras=(HIGH,)).sample(6, 2, 0.9)
    for key, frames in ((HIGH, batch["frame"]), (f"next.{HIGH}", batch["next_frame"])):
        assert batch[key].dtype == torch.uint8
        for image, frame in zip(batch[key], frames.tolist(), strict=True):
            of_step = [np.abs(image.numpy().astype(float) - picture(k)).mean() for k in range(9)]
            # at this size the encoder repeats every keyframe once
            off = abs(int(np.argmin(of_step)) - (frame if frame < 7 else frame - 7))
            assert off <= (0 if mode == "image" else 1)
            assert min(of_step) <= (0 if mode == "image" else 8)


def test_only_chunk_starts_start_a_window(convert_folder, tmp_path):
    import h5py

    path = write_episode(tmp_path / "in/score_5/episode_0.hdf5", 7, image_steps=[0, 4])
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.array([0, 4])
    convert_folder(tmp_path / "in", tmp_path / "out")
    batch = DatasetWindows(Dataset(tmp_path / "out")).sample(50, 3, 0.9)
    assert set(batch["frame"].tolist()) == {0, 4}


def test_a_start_on_the_frame_that_a_cut_episode_ends_with_starts_nothing(convert_folder, tmp_path):
    import h5py

    path = write_episode(tmp_path / "in/score_1/episode_0.hdf5", 7)
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.array([6])
    convert_folder(tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match="out: start marks no frame of the episodes"):
        DatasetWindows(Dataset(tmp_path / "out"))


def test_what_cannot_be_drawn_is_refused(dataset_root):
    dataset = Dataset(dataset_root)
    with pytest.raises(DataError, match=r"8 steps is longer than every episode, .* has 7; lower"):
        DatasetWindows(dataset).sample(4, 8, 0.9, tail="drop")
    with pytest.raises(DataError, match=r"has no observation\.images\.cam_low"):
        DatasetWindows(dataset, cameras=("observation.images.cam_low",))
