"""A series of datasets: whole ones alone, each episode once."""

from __future__ import annotations

import numpy as np
import pytest

from pld_ray.data.dataset import open_datasets
from pld_ray.data.dataset_series import DatasetSeries
from pld_ray.data.demonstrations import Wanted, episodes_in
from pld_ray.data.episode_writer import Recording
from pld_ray.data.errors import DataError

RECORDING = Recording(task="reach", fps=20, about={"run": "a"})
WANTED = Wanted({"observation.state": (2,)}, np.full(1, -1.0), np.full(1, 1.0), 20, "toy")


def episode(number: int, success: bool = False):
    length = 2 + number % 3
    flags = np.zeros((4, length + 1), bool)
    flags[:, length - 1] = success, not success, success, False
    zeros = np.zeros(length + 1, np.float32)
    return {
        "observation.state": np.full((length + 1, 2), number, np.float32),
        "base_action": np.zeros((length + 1, 1), np.float32),
        "action": np.zeros((length + 1, 1), np.float32),
        "reward": zeros,
        "residual_scale": zeros,
        **dict(zip(("terminated", "truncated", "success", "intervened"), flags, strict=True)),
    }


def numbers(folder):
    """Which episodes each dataset of the folder holds."""
    return {
        dataset.root.name: [
            int(dataset.columns(["observation.state"])["observation.state"][first, 0])
            for first in dataset.first_frames
        ]
        for dataset in open_datasets(folder)
    }


@pytest.fixture
def series(tmp_path):
    made = DatasetSeries(tmp_path / "buffer", RECORDING)
    made.close(50)  # nothing came: no dataset
    for number in range(6):
        made.add(episode(number, success=number == 4))
        if number % 2:
            made.close(100 * number)
    made.add(episode(6))
    assert not list(made.folder.rglob("run.lock"))  # its run holds one
    return made


def test_what_is_there_is_whole_and_named_after_its_step(series):
    expected = {"000000100": [0, 1], "000000300": [2, 3], "000000500": [4, 5]}
    assert numbers(series.folder) == expected
    found = list(episodes_in(str(series.folder), WANTED, successes_only=False))
    assert [episode["observation.state"][0, 0] for _, _, episode in found] == [*range(6)]
    ((dataset, index, columns),) = episodes_in(str(series.folder), WANTED)
    assert (dataset.root.name, index) == ("000000500", 0)
    for name, values in episode(4, success=True).items():
        np.testing.assert_array_equal(columns[name], values)
    one = str(series.folder / "000000100")
    with pytest.raises(DataError, match=r"000000100 has no episode that ended in success: record"):
        list(episodes_in(one, WANTED))
    with pytest.raises(DataError, match="is no LeRobotDataset"):
        open_datasets(series.folder.parent / "elsewhere")


def test_a_killed_run_goes_on_without_what_came_after_its_checkpoint(series):
    again = DatasetSeries(series.folder, RECORDING)  # the other one was killed with 6 open
    again.go_back(300)
    assert numbers(again.folder) == {"000000100": [0, 1], "000000300": [2, 3]}
    assert (again.folder / ".aside-000000500/meta/info.json").exists()
    again.add(episode(7))
    again.close(500)
    assert numbers(again.folder)["000000500"] == [7]
    again.go_back(300)  # aside is put what was there last
    again.go_back(-1)
    assert sorted(path.name for path in again.folder.iterdir()) == [
        ".aside-000000100",
        ".aside-000000300",
        ".aside-000000500",
    ]
