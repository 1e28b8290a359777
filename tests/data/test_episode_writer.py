"""Episodes of a rollout come back from a dataset as they went in, to the bit."""

from __future__ import annotations

import json
import os
import pathlib
import shlex

import numpy as np
import pytest
from lerobot.datasets import LeRobotDataset
from lerobot.scripts import lerobot_edit_dataset

from pld_ray.data import demonstrations, episode_writer
from pld_ray.data.dataset import Dataset, open_datasets
from pld_ray.data.dataset_series import DatasetSeries
from pld_ray.data.demonstrations import Wanted, episodes_of, identity_of, recording_of
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.data.errors import DataError

RECORDING = Recording(task="lift", fps=20, about={"fingerprint": "abc", "seed": 1})
SHAPES = {
    "observation.state": (3,),
    "observation.environment_state": (2,),
    "observation.images.image": (6, 8, 3),
}
WANTED = Wanted(SHAPES, np.full(2, -1.0), np.full(2, 1.0), 20, "toy")


def episode(rng, length, success=True, **changes):
    rows = length + 1
    columns = {
        name: rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
        if len(shape) == 3
        else rng.normal(size=(rows, *shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    columns |= {
        name: rng.uniform(-1, 1, (rows, 2)).astype(np.float32) for name in ("base_action", "action")
    }
    columns["action"][-1] = 0
    columns |= {
        name: np.zeros(rows, dtype)
        for name, dtype in {
            "reward": np.float32,
            "terminated": bool,
            "truncated": bool,
            "success": bool,
            "residual_scale": np.float32,
            "intervened": bool,
        }.items()
    }
    columns["reward"][length - 1] = success
    columns["terminated" if success else "truncated"][length - 1] = True
    columns["success"][length - 1] = success
    columns["residual_scale"][length // 2 : length] = 0.5
    return columns | changes


def equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture
def recorded(tmp_path):
    rng = np.random.default_rng(0)
    episodes = [episode(rng, n, success) for n, success in ((4, True), (1, False), (7, False))]
    writer = EpisodeWriter(tmp_path / "d", RECORDING)
    for number, columns in enumerate(episodes):
        writer.add(columns, {"seed": number})
    writer.finish()
    return tmp_path / "d", episodes


def test_a_round_trip_changes_no_bit(recorded):
    root, episodes = recorded
    found = list(episodes_of(Dataset(root), WANTED, successes_only=False))
    assert [index for index, _ in found] == [0, 1, 2]
    for (_, columns), was in zip(found, episodes, strict=True):
        equal(columns, was)
    assert [index for index, _ in episodes_of(Dataset(root), WANTED)] == [0]
    assert recording_of(Dataset(root))["fingerprint"] == "abc"


def test_lerobot_reads_it(recorded):
    root, episodes = recorded
    dataset = LeRobotDataset("lab/d", root=root)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (3, 12, 20)
    item = dataset[3]
    np.testing.assert_array_equal(item["action"], episodes[0]["action"][3])
    pixels = item["observation.images.image"].permute(1, 2, 0) * 255
    np.testing.assert_array_equal(pixels.round(), episodes[0]["observation.images.image"][3])
    marks = ("next.done", "next.success", "next.terminated", "residual")
    assert [bool(item[name]) for name in marks] == [True, True, True, True]
    assert [bool(dataset[11][name]) for name in marks] == [True, False, False, True]
    assert dataset.meta.episodes["seed"] == [0, 1, 2]


def test_a_recording_goes_on_with_what_it_kept(recorded, tmp_path):
    root, episodes = recorded
    with EpisodeWriter(tmp_path / "e", RECORDING) as first:
        first.add(episodes[0], {"seed": 0})
    half_written = tmp_path / "e" / ".collection/parts/.partial-000001-1"
    half_written.mkdir()
    again = EpisodeWriter(tmp_path / "e", RECORDING)
    assert (again.lengths, again.successes) == ([4], [True])
    again.add(episodes[1], {"seed": 1})
    again.add(episodes[2], {"seed": 2})
    again.finish()
    assert identity_of(Dataset(tmp_path / "e")) == identity_of(Dataset(root))
    assert sorted(os.listdir(tmp_path / "e")) == ["collection_progress.json", "data", "meta"]


def test_a_recording_that_was_stopped_before_its_first_episode_binds_nobody(recorded, tmp_path):
    _, episodes = recorded
    root = tmp_path / "e"
    with EpisodeWriter(root, RECORDING), pytest.raises(DataError, match="in use by this process"):
        EpisodeWriter(root, Recording(task="push", fps=10))
    with EpisodeWriter(root, Recording(task="push", fps=10)) as writer:
        writer.add(episodes[0])
        writer.finish()
    assert (Dataset(root).tasks, Dataset(root).fps) == (["push"], 10)


def test_killed_while_it_moves_into_place_the_dataset_is_whole(recorded, tmp_path, monkeypatch):
    root, episodes = recorded
    writer = EpisodeWriter(tmp_path / "e", RECORDING)
    for number, columns in enumerate(episodes):
        writer.add(columns, {"seed": number})

    def killed(staged, target):
        (staged / "data").rename(target / "data")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(episode_writer, "move_into_place", killed)
        with pytest.raises(KeyboardInterrupt), writer:
            writer.finish()
    with pytest.raises(DataError, match="finished dataset already"):
        EpisodeWriter(tmp_path / "e", RECORDING)
    assert identity_of(Dataset(tmp_path / "e")) == identity_of(Dataset(root))


def test_what_cannot_be_recorded_there_is_one_sentence(recorded, tmp_path):
    root, episodes = recorded
    with pytest.raises(DataError, match="finished dataset already; give a new folder"):
        EpisodeWriter(root, RECORDING)
    with pytest.raises(DataError, match="holds something already"):
        EpisodeWriter(tmp_path, RECORDING)
    for folder in (root, tmp_path):  # a look leaves nothing behind
        assert not (folder / ".collection").exists()
    writer = EpisodeWriter(tmp_path / "e", RECORDING)
    with pytest.raises(DataError, match="no episode was recorded"):
        writer.finish()
    writer.add(episodes[0])
    other = {**episodes[1], "base_action": np.zeros((2, 3), np.float32)}
    with pytest.raises(DataError, match="base_action differs from the episodes before"):
        writer.add(other)
    with pytest.raises(DataError, match="begun with fps=20 and is now asked for 10"):
        EpisodeWriter(tmp_path / "e", Recording(task="lift", fps=10, about=RECORDING.about))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fps": 50}, "20 frames per second, toy makes 50 steps per second"),
        ({"action_low": np.zeros(3), "action_high": np.ones(3)}, "2 dimensions, toy takes 3"),
        ({"observations": {"observation.effort": (7,)}}, "no observation.effort, which toy gives"),
        ({"observations": {"observation.state": (4,)}}, r"has shape \(3,\), toy gives \(4,\)"),
        ({"action_high": np.array([1.0, 0.1])}, "action dimension 1 ranges .* toy takes -1 to 0.1"),
    ],
)
def test_a_dataset_of_another_environment_is_refused_naming_both_sides(recorded, changes, said):
    wanted = Wanted(**{**vars(WANTED), **changes})
    with pytest.raises(DataError, match=said):
        list(episodes_of(Dataset(recorded[0]), wanted, successes_only=False))


def test_a_dataset_of_somebody_else_gives_up_its_last_frame_where_it_was_cut(recorded, tmp_path):
    """No final observation, no `next.terminated`: the rule of `DatasetWindows`."""
    root, episodes = recorded
    import pyarrow.parquet as pq

    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop([n for n in table.column_names if n.startswith("final/")]), path)
    info = json.loads((root / "meta/info.json").read_text())
    for name in ("next.terminated", "base_action", "residual_scale", "intervened"):
        del info["features"][name]
    (root / "meta/info.json").write_text(json.dumps(info))
    found = dict(episodes_of(Dataset(root), WANTED, successes_only=False))
    assert sorted(found) == [0, 2]  # one frame that was cut is no transition
    success, cut = found[0], found[2]
    assert "base_action" not in success
    assert success["terminated"].tolist() == [False, False, False, True, False]
    np.testing.assert_array_equal(success["action"][:-1], episodes[0]["action"][:-1])
    np.testing.assert_array_equal(success["observation.state"][4], success["observation.state"][3])
    assert cut["truncated"].tolist() == [False] * 5 + [True, False]
    for name in SHAPES:
        np.testing.assert_array_equal(cut[name], episodes[2][name][:7])


def test_what_is_not_finite_is_named(tmp_path):
    rng = np.random.default_rng(1)
    columns = episode(rng, 4)
    columns["observation.state"][2, 1] = np.nan
    writer = EpisodeWriter(tmp_path / "d", RECORDING)
    writer.add(columns)
    writer.finish()
    with pytest.raises(DataError, match=r"episode 0: observation\.state is not finite in frame 2"):
        list(episodes_of(Dataset(tmp_path / "d"), WANTED))
    assert demonstrations.identity_of(Dataset(tmp_path / "d"))


def test_lerobot_makes_one_dataset_of_a_series(tmp_path, monkeypatch):
    """By the command of docs/data.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs/data.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("lerobot-edit-dataset ")]
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    series = DatasetSeries(pathlib.Path("outputs/seen/buffer"), RECORDING)
    episodes = [episode(rng, length, success=length == 3) for length in (2, 5, 3)]
    for number, columns in enumerate(episodes):
        series.add(columns)
        if number:
            series.close(5000 * number)
    assert [len(dataset.episodes) for dataset in open_datasets(series.folder)] == [2, 1]
    monkeypatch.setattr("sys.argv", shlex.split(line))
    lerobot_edit_dataset.main()
    merged = Dataset("datasets/seen")
    assert merged.lengths.tolist() == [2, 5, 3]
    assert merged.successes().tolist() == [False, False, True]
    action = np.concatenate([columns["action"][:-1] for columns in episodes])
    np.testing.assert_array_equal(merged.columns(["action"])["action"], action)


def test_lerobots_viewer_opens_it(recorded, tmp_path, monkeypatch):
    """Where Rerun is installed, which requirements.lock leaves out (390 MB)."""
    pytest.importorskip("rerun")
    from lerobot.scripts import lerobot_dataset_viz

    argv = ["lerobot-dataset-viz", "--repo-id=lab/d", f"--root={recorded[0]}", "--episode-index=0"]
    argv += ["--save=1", f"--output-dir={tmp_path}", "--num-workers=0"]
    monkeypatch.setattr("sys.argv", argv)
    lerobot_dataset_viz.main()
    assert (tmp_path / "lab_d_episode_0.rrd").stat().st_size > 1000
