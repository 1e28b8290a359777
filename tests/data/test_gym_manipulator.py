"""Datasets as LeRobot's `gym_manipulator` records them: no `next.success`, and `next.done` on the
last frame of a failure too."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from lerobot.datasets import LeRobotDataset

from pld_ray.cli import main
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import Wanted, check_fits, episodes_of
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import compute_norm_stats
from pld_ray.data.training_windows import Needed, TrainingWindows, find_episodes
from pld_ray.data.windows import DatasetWindows

NAMES = ["delta_x", "delta_y", "delta_z"]
LENGTHS, SUCCESS = (5, 4, 6), (True, False, True)


CAMERA, SIZE = "observation.images.front", (48, 64)


def record(root, action, camera=None):
    """Episodes of `LENGTHS` by LeRobot's own writer.

    Args:
        action: the feature of a teleoperator.
        camera: `image` or `video`, which is declared channels first, as `gym_manipulator` does.
    """
    scalar = {"shape": (1,), "names": None}
    features = {
        "action": action,
        "next.reward": {"dtype": "float32", **scalar},
        "next.done": {"dtype": "bool", **scalar},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
    }
    if camera is not None:
        names = ["channels", "height", "width"]
        features[CAMERA] = {"dtype": camera, "shape": (3, *SIZE), "names": names}
    videos = camera == "video"
    dataset = LeRobotDataset.create("lab/reach", 10, features, root=root, use_videos=videos)
    rng = np.random.default_rng(0)
    for length, success in zip(LENGTHS, SUCCESS, strict=True):
        for step in range(length):
            last = step == length - 1
            image = {CAMERA: np.full((3, *SIZE), step / 10, np.float32)} if camera else {}
            dataset.add_frame(
                {
                    **image,
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


@pytest.fixture(scope="module", params=["image", "video"])
def seeing(request, tmp_path_factory):
    """With a camera."""
    action = {"dtype": "float32", "shape": (3,), "names": NAMES}
    return record(tmp_path_factory.mktemp("gym") / request.param, action, request.param)


def test_a_camera_that_is_declared_channels_first_has_the_shape_it_decodes_to(seeing):
    dataset = Dataset(seeing)
    assert tuple(dataset.features[CAMERA]["shape"]) == (3, *SIZE)
    assert dataset.shape(CAMERA) == dataset.images(0, CAMERA, [0])[0].shape == (*SIZE, 3)
    assert (dataset.shape("observation.state"), dataset.shape("action")) == ((2,), (3,))


def test_such_a_camera_is_demonstrated_and_learnt_from(seeing, tmp_path):
    low, high = np.full(3, -1.0), np.full(3, 1.0)
    seen = {"observation.state": (2,), CAMERA: (*SIZE, 3)}
    found = dict(episodes_of(Dataset(seeing), Wanted(seen, low, high, 10, "reach")))
    assert found[0][CAMERA].shape == (LENGTHS[0] + 1, *SIZE, 3)
    small = Wanted({CAMERA: (32, 32, 3)}, low, high, 10, "reach")
    with pytest.raises(DataError, match=r"has shape \(48, 64, 3\), reach gives \(32, 32, 3\)"):
        check_fits(Dataset(seeing), small)
    shapes = {"observation.state": (2,), CAMERA: (3, *SIZE)}
    needed = Needed(shapes, {name: name for name in shapes}, 3, None, (0,))
    windows = TrainingWindows(find_episodes([seeing], needed, True), needed)
    assert windows.batch(np.array([0, 1]))[CAMERA].shape == (2, 3, *SIZE)
    # beside one that says the same in the other order
    other = shutil.copytree(seeing, tmp_path / "other")
    info = json.loads((other / "meta/info.json").read_text())
    info["features"][CAMERA] |= {"shape": [*SIZE, 3], "names": ["height", "width", "channels"]}
    (other / "meta/info.json").write_text(json.dumps(info))
    assert len(find_episodes([seeing, other], needed, True)) == 4


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


def test_an_action_without_a_state_to_be_relative_to_is_refused(gamepad):
    with pytest.raises(DataError, match=r"dimension 2 relative .* has 3 actions and 2 states"):
        compute_norm_stats(Dataset(gamepad), 2, [0, 2])


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


def test_windows_of_successes_are_positive(gamepad):
    windows = DatasetWindows(Dataset(gamepad))
    drawn = windows.sample(400, 2, 0.9, positive_share=0.0)
    failed = (drawn["frame"] >= 5) & (drawn["frame"] < 9)
    assert 0 < failed.sum() < 400
    assert drawn["positive"].tolist() == (~failed).tolist()
    assert windows.sample(40, 2, 0.9, positive_share=1.0)["positive"].all()
