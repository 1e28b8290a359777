"""LeRobot reads and trains on what is written here; the one file that imports it."""

from __future__ import annotations

import json
import pathlib
import re
import shlex

import h5py
import numpy as np
import pytest
import torch
from aloha_files import CAMERAS, picture, write_episode, write_folder
from hilserl_files import write_transitions
from lerobot.datasets import LeRobotDataset
from lerobot.datasets.compute_stats import RunningQuantileStats, get_feature_stats

from pld_ray import cli
from pld_ray.data import norm_stats
from pld_ray.data.dataset import Dataset
from pld_ray.data.errors import DataError
from pld_ray.data.norm_stats import (
    compute_norm_stats,
    parse_delta,
    read_norm_stats,
    running_stats,
)
from pld_ray.data.normalizer import Normalizer

HIGH = "observation.images.cam_high"


@pytest.fixture(scope="module")
def video_root(tmp_path_factory, convert_folder):
    folder = write_folder(tmp_path_factory.mktemp("jpegs"), jpeg=True)
    convert_folder(folder, folder / "out", mode="video")
    return folder / "out"


def test_lerobot_reads_images_as_they_were_recorded(recordings, dataset_root):
    dataset = LeRobotDataset("lab/fold", root=dataset_root)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (3, 18, 50)
    with h5py.File(recordings / "score_5/episode_1.hdf5") as file:
        for step in (0, 6):
            item = dataset[6 + step]
            assert item["task"] == "fold the box"
            assert np.array_equal(item["action"], file["action"][step].astype(np.float32))
            for camera in CAMERAS:
                seen = item[f"observation.images.{camera}"].permute(1, 2, 0) * 255
                recorded = file[f"observations/images/{camera}"][step]
                assert np.array_equal(seen.round().to(torch.uint8), recorded)
    last = dataset[12]
    assert (last["next.reward"], last["next.done"], last["next.success"]) == (1, True, True)


def test_lerobot_reads_videos(video_root):
    steps = {"action": [k / 50 for k in range(3)]}
    dataset = LeRobotDataset("lab/fold", root=video_root, delta_timestamps=steps)
    for row, step in ((5, 5), (6, 0), (12, 6), (17, 4)):  # ends and beginnings of episodes
        item = dataset[row]
        seen = item[HIGH].permute(1, 2, 0).numpy() * 255
        shown = step - step % 2  # at this size the encoder repeats every keyframe once
        assert np.square(seen - picture(shown)).mean() < 255**2 / 1000
        ours = Dataset(video_root).images([5, 12, 17].index(row) if row != 6 else 1, HIGH, [step])
        assert np.abs(seen - ours[0]).mean() < 1.5
    assert item["action"].shape == (3, 14)
    assert item["action_is_pad"].tolist() == [False, True, True]


def test_statistics_are_lerobots(dataset_root, video_root):
    dataset = LeRobotDataset("lab/fold", root=dataset_root)
    episode = dataset.hf_dataset.with_format("numpy")[6:13]
    found = {
        name: get_feature_stats(np.stack(episode[name]), axis=0, keepdims=name != "action")
        for name in ("action", "next.reward", "next.done")
    }
    images = np.stack([picture(step).transpose(2, 0, 1) for step in range(7)])
    of_images = get_feature_stats(images, axis=(0, 2, 3), keepdims=True)
    found[HIGH] = {key: v if key == "count" else v[0] / 255 for key, v in of_images.items()}
    import pyarrow.parquet as pq

    row = pq.read_table(dataset_root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    for feature, stats in found.items():
        for key, value in stats.items():
            ours = np.array(row[f"stats/{feature}/{key}"])
            assert ours.shape == value.shape
            assert np.allclose(ours, value, rtol=1e-3, atol=1e-6), (feature, key)
    recorded = np.stack([picture(s) for n in (6, 7, 5) for s in range(n)]) / 255
    for root, tolerance in ((dataset_root, 1e-9), (video_root, 0.02)):
        total = LeRobotDataset("lab/fold", root=root).meta.stats[HIGH]
        assert np.allclose(total["mean"].ravel(), recorded.mean((0, 1, 2)), atol=tolerance)
        assert np.allclose(total["std"].ravel(), recorded.std((0, 1, 2)), atol=tolerance)
        assert total["count"] == 18


def windows(dataset, horizon, delta=()):
    """Every valid action of every window, one after the other, and every state."""
    columns = dataset.columns(["observation.state", "action"])
    state, action = (values.astype(np.float64) for values in columns.values())
    rows = []
    for first, length in zip(dataset.first_frames, dataset.lengths, strict=True):
        for t in range(first, first + length):
            for k in range(t, min(t + horizon, first + length)):
                row = action[k].copy()
                row[list(delta)] -= state[t][list(delta)]
                rows.append(row)
    return state, np.stack(rows)


@pytest.mark.parametrize("delta", ["", "6,-1,6,-1"])
def test_normalisation_over_the_windows_that_training_sees(dataset_root, delta):
    dataset = Dataset(dataset_root)
    relative = parse_delta(delta) if delta else []
    assert len(relative) in (0, 12)
    stats = compute_norm_stats(dataset, 3, relative)
    for found, expected in zip(stats.values(), windows(dataset, 3, relative), strict=True):
        bin_width = (expected.max(0) - expected.min(0)) / 5000
        assert np.allclose(found.mean, expected.mean(0), rtol=1e-6)
        assert np.allclose(found.std, expected.std(0), rtol=1e-6)
        for quantile, share in ((found.q01, 0.01), (found.q99, 0.99)):
            exact = np.quantile(expected, share, axis=0, method="inverted_cdf")
            assert (np.abs(quantile - exact) <= bin_width * 1.001).all()


def test_the_range_grows_without_losing_precision():
    rng = np.random.default_rng(0)
    batches = [rng.normal(1000 + k, 1, (20, 2)) for k in range(150)]
    found = running_stats(lambda: iter(batches))
    whole = np.concatenate(batches)
    assert np.allclose(found.mean, whole.mean(0), rtol=1e-9)
    assert np.allclose(found.std, whole.std(0), rtol=1e-9)
    exact = np.quantile(whole, 0.01, axis=0, method="inverted_cdf")
    width = (whole.max(0) - whole.min(0)) / 5000
    assert (np.abs(found.q01 - exact) <= width).all()
    plain = RunningQuantileStats([0.01, 0.99])  # what this is about
    for batch in batches:
        plain.update(batch)
    assert (np.abs(plain.get_statistics()["q01"] - exact) > 2 * width).all()


def test_the_range_may_grow_at_both_ends():
    rng = np.random.default_rng(0)
    batches = [rng.normal((-1) ** k * k, 1, (20, 2)) for k in range(150)]
    found = running_stats(lambda: iter(batches))
    whole = np.concatenate(batches)
    width = (whole.max(0) - whole.min(0)) / 5000
    for quantile, share in ((found.q01, 0.01), (found.q99, 0.99)):
        exact = np.quantile(whole, share, axis=0, method="inverted_cdf")
        assert (np.abs(quantile - exact) <= width).all()


def test_a_single_frame_has_no_statistics():
    with pytest.raises(DataError, match="at least two frames"):
        running_stats(lambda: iter([np.ones((1, 2))]))


@pytest.mark.parametrize("values", [1, 100])
def test_windows_taken_in_parts_have_the_same_statistics(dataset_root, monkeypatch, values):
    dataset = Dataset(dataset_root)
    expected = compute_norm_stats(dataset, 3, [0])["actions"]
    monkeypatch.setattr(norm_stats, "BATCH_VALUES", values)
    found = compute_norm_stats(dataset, 3, [0])["actions"]
    for name, value in vars(expected).items():
        np.testing.assert_allclose(vars(found)[name], value, rtol=1e-9)


def test_a_window_may_be_as_long_as_the_longest_episode(dataset_root):
    dataset = Dataset(dataset_root)
    expected = windows(dataset, 7)[1].mean(0)
    np.testing.assert_allclose(compute_norm_stats(dataset, 7)["actions"].mean, expected)


def test_where_frames_are_marked_windows_begin_at_those_alone(convert_folder, tmp_path):
    path = write_episode(tmp_path / "in/score_5/episode_0.hdf5", 7)
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.array([1, 4, 6])
    convert_folder(tmp_path / "in", tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    state, action = dataset.columns(["observation.state", "action"]).values()
    stats = compute_norm_stats(dataset, 2)
    np.testing.assert_allclose(stats["state"].mean, state[[1, 4, 6]].mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["actions"].mean, action[[1, 2, 4, 5, 6]].mean(0), rtol=1e-5)


def test_where_no_frame_is_marked_there_are_no_statistics(convert_folder, tmp_path):
    path = write_episode(tmp_path / "in/score_5/episode_0.hdf5", 7)
    with h5py.File(path, "a") as file:
        file["chunk_starts"] = np.zeros(7, bool)
    convert_folder(tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match=r"the column start of .*out marks no frame"):
        compute_norm_stats(Dataset(tmp_path / "out"), 2)


def test_a_dimension_that_is_neither_relative_nor_absolute_is_refused():
    assert parse_delta("2,-1,1") == [0, 1, 3]
    with pytest.raises(DataError, match="--delta=6,0,6: must be numbers as in"):
        parse_delta("6,0,6")


def test_norm_stats_are_written_for_openpi_and_read_back(dataset_root, tmp_path, capsys):
    output = tmp_path / "norm_stats.json"
    with pytest.raises(DataError, match=rf"make it with pld-ray norm-stats {tmp_path}"):
        read_norm_stats(tmp_path)
    assert cli.main(["norm-stats", str(dataset_root), "--horizon=3", f"--output={output}"]) == 0
    assert "left_waist" in capsys.readouterr().out
    saved = json.loads(output.read_text())
    assert list(saved) == ["norm_stats"]
    assert set(saved["norm_stats"]) == {"state", "actions"}
    assert set(saved["norm_stats"]["actions"]) == {"mean", "std", "q01", "q99"}
    stats = read_norm_stats(tmp_path)["actions"]
    x = np.random.default_rng(0).normal(size=(5, 14))
    for mode, expected in (
        ("zscore", (x - stats.mean) / (stats.std + 1e-6)),
        ("quantile", 2 * (x - stats.q01) / (stats.q99 - stats.q01 + 1e-6) - 1),
    ):
        made = Normalizer.read(tmp_path, "actions", 14, mode)
        assert np.allclose((x - made.center) / made.scale, expected, rtol=1e-12, atol=1e-9)
    output.write_text('{"norm_stats": {"state": {"mean": [0]}}}')
    with pytest.raises(DataError, match=r"is no norm_stats\.json"):
        read_norm_stats(output)
    assert cli.main(["norm-stats", str(dataset_root), "--horizon=8"]) == 2
    assert "the longest has 7 frames; lower it" in capsys.readouterr().err
    assert cli.main(["norm-stats", str(dataset_root), "--delta=6,x"]) == 2
    assert "must be numbers as in 6,-1,6,-1" in capsys.readouterr().err
    assert cli.main(["norm-stats", str(dataset_root), "--delta=15"]) == 2
    assert "makes dimension 14 relative" in capsys.readouterr().err


def test_act_trains_on_it(dataset_root):
    from lerobot.configs import FeatureType
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    steps = {"action": [k / 50 for k in range(4)]}
    dataset = LeRobotDataset("lab/fold", root=dataset_root, delta_timestamps=steps)
    features = dataset_to_policy_features(dataset.features)
    outputs = {"action": features.pop("action")}
    wanted = ("observation.state", HIGH)
    inputs = {k: f for k, f in features.items() if k in wanted}
    assert {f.type for f in inputs.values()} == {FeatureType.STATE, FeatureType.VISUAL}
    torch.manual_seed(0)
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        chunk_size=4,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_decoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy = ACTPolicy(config)
    preprocess, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    batch = preprocess(next(iter(torch.utils.data.DataLoader(dataset, batch_size=8))))
    losses = []
    for _ in range(8):
        loss = policy(batch)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_every_command_of_the_page_about_data_runs(tmp_path, monkeypatch, capsys):
    write_folder(tmp_path / "recordings")
    for k, folder in enumerate(("good", "bad")):
        path = tmp_path / "other_arm" / folder / "episode_0.hdf5"
        write_episode(path, 4, k, cameras=("top",), motors=7)
    (tmp_path / "other_arm.yaml").write_text(
        "cameras: {front: /observations/images/top}\nmotors: [a, b, c, d, e, f, gripper]\n"
    )
    monkeypatch.chdir(tmp_path)
    text = (pathlib.Path(__file__).parents[2] / "docs/data.md").read_text()
    commands = [
        shlex.split(line)
        for block in re.findall(r"```\n(.*?)```", text, re.S)
        for line in block.splitlines()
    ]
    assert len(commands) == 16
    # those about runs are in tests/jobs/test_collect.py, LeRobot's own in test_episode_writer.py
    commands = [c for c in commands if c[0] == "pld-ray" and c[1] not in ("collect", "train")]
    commands.remove(["pld-ray", "norm-stats", "datasets/base"])
    write_transitions(tmp_path / "demos/transitions_900.pkl")
    assert {command[1] for command in commands} == {"convert", "data", "norm-stats"}
    for command in commands:
        assert cli.main(command[1:]) == 0, (command, capsys.readouterr().err)
    for name in ("fold_box/dataset.html", "fold_box/norm_stats.json", "video/videos"):
        assert (tmp_path / "datasets" / name).exists()
