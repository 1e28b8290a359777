"""The summary of a dataset and its page."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
from aloha_files import write_folder

from pld_ray import cli
from pld_ray.charts.panels import MAX_POINTS, thinned
from pld_ray.data.dataset import Dataset
from pld_ray.data.page import facts
from pld_ray.data.summary import chosen_episodes, describe, summarize, unusual_lengths

FIRST = np.array([0, 100])


def test_outliers_are_marked_where_they_stand():
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    assert describe("action", "x", values, FIRST).mark == ""
    values[133] = 40.0
    found = describe("action", "x", values, FIRST)
    assert found.mark == "1 outlier, first in episode 1, frame 33"
    assert found.high == 40
    values[7] = np.nan
    assert describe("action", "x", values, FIRST).mark.startswith("1 values are not finite, first ")
    assert describe("action", "x", np.ones(9), FIRST).mark == "never changes"
    assert describe("next.reward", "0", np.zeros(9), FIRST).mark == ""
    switched = np.repeat([0.0, 1.0], 100)
    assert describe("action", "gripper", switched, FIRST).mark == ""
    assert describe("action", "x", np.full(9, np.nan), FIRST).mark == "holds no finite value"


def test_lengths_unlike_the_others():
    assert unusual_lengths(np.array([50, 52, 49, 51, 50, 3])) == [
        "episode 5 has 3 frames, unlike the others"
    ]
    assert unusual_lengths(np.array([50, 20, 80, 60])) == []


def test_a_summary_by_hand(dataset_root):
    summary = summarize(Dataset(dataset_root))
    assert summary.success_share == pytest.approx(2 / 3)
    assert summary.returns.tolist() == [1, 1, 0]
    assert summary.lengths.tolist() == [6, 7, 5]
    assert len(summary.dimensions) == 4 * 14 + 1
    assert chosen_episodes(summary) == [0, 1, 2]
    assert chosen_episodes(summary, 2) == [0, 2]  # a success and the failure


def test_episodes_may_have_no_words(dataset_root):
    dataset = Dataset(dataset_root)
    for row in dataset.episodes:
        del row["tasks"]
    assert facts(summarize(dataset))["task"] == ""


def test_a_thinned_line_keeps_its_peaks():
    values = np.zeros(5000)
    values[[1234, 4321]] = (5, -5)
    points = thinned(values)
    assert len(points) <= MAX_POINTS
    assert (1234, 5.0) in points
    assert (4321, -5.0) in points


def test_the_page_holds_everything_itself(tmp_path, convert_folder, capsys):
    folder = write_folder(tmp_path / "in")
    with h5py.File(folder / "score_5/episode_0.hdf5", "a") as file:
        file["action"][3, 9] = 500.0
    convert_folder(folder, tmp_path / "out", mode="video")
    page = tmp_path / "page.html"
    assert cli.main(["data", str(tmp_path / "out"), "--episodes=0,2", f"--output={page}"]) == 0
    told = capsys.readouterr().out
    assert "success   67 %" in told
    assert f"page: {page}" in told
    text = page.read_text()
    assert text.count("<img ") == 3 * 6 + 3 * 5  # every frame of two short episodes
    assert text.count(' class="line"/>') == 2 * 2 * 14
    assert "score_1/episode_0.hdf5" in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert cli.main(["data", str(tmp_path / "out"), "--episodes=3"]) == 2
    assert "must be numbers from 0 to 2" in capsys.readouterr().err
    assert cli.main(["data", str(tmp_path)]) == 2
    assert "is no LeRobotDataset" in capsys.readouterr().err
