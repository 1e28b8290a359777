"""Datasets as LeRobot's `gym_manipulator` records them: no `next.success`, and `next.done` on the
last frame of a failure too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lerobot.datasets import LeRobotDataset

from pld_ray.cli import main
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import Wanted, episodes_of
from pld_ray.data.norm_stats import compute_norm_stats
from pld_ray.data.windows import DatasetWindows

NAMES = ["delta_x", "delta_y", "delta_z"]
LENGTHS, SUCCESS = (5, 4, 6), (True, False, True)


def record(root, action):
    """Episodes of `LENGTHS` by LeRobot's own writer; `action` is the feature of a teleoperator."""
    scalar = {"shape": (1,), "names": None}
    features = {
        "action": action,
        "next.reward": {"dtype": "float32", **scalar},
        "next.done": {"dtype": "bool", **scalar},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create("lab/reach", 10, features, root=root, use_videos=False)
    rng = np.random.default_rng(0)
    for length, success in zip(LENGTHS, SUCCESS, strict=True):
        for step in range(length):
            last = step == length - 1
            dataset.add_frame(
                {
                    "action": rng.uniform(-1, 1, action["shape"]).astype(np.float32),
                    "next.reward": np.array([last and success], np.float32),
                    "next.done": np.array([last]),
                    "observation.state": rng.normal(size=2).astype(np.float32),
                    "task": "reach",
                }
            )
        dataset.save_episode()
    dataset.finalize()
    return root


@pytest.fixture(scope="module")
def gamepad(tmp_path_factory):
    """The action of LeRobot's gamepad and keyboard, whose names have places."""
    names = {"delta_z": 2, "delta_x": 0, "delta_y": 1}
    action = {"dtype": "float32", "shape": (3,), "names": names}
    return record(tmp_path_factory.mktemp("gym") / "reach", action)


def test_names_with_places_are_shown_in_their_order(gamepad, tmp_path, capsys):
    assert Dataset(gamepad).names("action") == NAMES
    assert main(["norm-stats", str(gamepad), f"--output={tmp_path / 'stats.json'}"]) == 0
    assert main(["data", str(gamepad), f"--output={tmp_path / 'page.html'}"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [word for word in shown if word in NAMES] == NAMES


def test_an_action_of_one_dimension(tmp_path, capsys):
    root = record(tmp_path / "d", {"dtype": "float32", "shape": (1,), "names": ["speed"]})
    stats = compute_norm_stats(Dataset(root), 2, [0])
    assert (stats["actions"].mean.shape, stats["state"].mean.shape) == ((1,), (2,))
    assert main(["norm-stats", str(root)]) == 0
    actions = Dataset(root).columns(["action"])["action"]
    saved = json.loads((root / "norm_stats.json").read_text())["norm_stats"]["actions"]
    assert saved["mean"] == pytest.approx([actions.mean()])
    assert main(["data", str(root), f"--output={tmp_path / 'page.html'}"]) == 0


def test_an_episode_that_ended_without_a_reward_failed(gamepad):
    wanted = Wanted({"observation.state": (2,)}, np.full(3, -1.0), np.full(3, 1.0), 10, "reach")
    assert [index for index, _ in episodes_of(Dataset(gamepad), wanted)] == [0, 2]
    found = dict(episodes_of(Dataset(gamepad), wanted, successes_only=False))
    assert [len(found[k]["reward"]) - 1 for k in range(3)] == [5, 3, 6]  # a failure was cut
    for name, expected in (("terminated", SUCCESS), ("success", SUCCESS)):
        assert [bool(found[k][name][-2]) for k in range(3)] == list(expected)
    assert [bool(found[k]["truncated"][-2]) for k in range(3)] == [False, True, False]


def test_chunks_do_not_end_in_a_failure_as_in_a_success(gamepad):
    ring = DatasetWindows(Dataset(gamepad)).ring
    assert ring.episode_lengths == [5, 3, 6]
    ends = np.cumsum([6, 4, 7]) - 2
    assert [bool(x) for x in ring.column("terminated", ends)] == list(SUCCESS)
    assert Dataset(gamepad).successes().tolist() == list(SUCCESS)  # `pld-ray data`, finetune
