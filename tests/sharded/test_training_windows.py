"""Windows against the recorded episodes, and draws that depend on nothing but their number."""

import dataclasses

import numpy as np
import pytest
from sharded_data import recorded_episode, write_dataset

from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.data.errors import DataError
from pld_ray.data.training_windows import Needed, TrainingWindows, find_episodes, hold_out
from pld_ray.sharded.trainer import ValidationBatches

CAMERA = "observation.images.image"
NEEDED = Needed(
    shapes={"observation.state": (8,)},
    names={"observation.state": "observation.state"},
    action_dim=7,
    observation_steps=None,
    action_steps=(0, 1, 2, 3),
)


def test_a_window_holds_the_actions_from_its_frame_on_and_repeats_the_last(small_dataset):
    root, actions = small_dataset
    windows = TrainingWindows(find_episodes([root], NEEDED, False), NEEDED)
    batch = windows.batch(np.array([0, 10, 12 + 2, len(windows) - 1]))
    np.testing.assert_array_equal(batch["action"][0], actions[0][:4])
    np.testing.assert_array_equal(batch["action"][1], actions[0][[10, 11, 11, 11]])
    np.testing.assert_array_equal(batch["action"][2], actions[1][[2, 2, 2, 2]])
    assert batch["action_is_pad"].tolist() == [
        [False] * 4,
        [False, False, True, True],
        [False, True, True, True],
        [False, True, True, True],
    ]
    assert batch["task"] == ["lift the can"] * 4


def test_each_frame_has_its_own_instruction(small_dataset, tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    vector = {"dtype": "float32", "names": None}
    features = {"observation.state": {**vector, "shape": (8,)}, "action": {**vector, "shape": (7,)}}
    dataset = LeRobotDataset.create("me/drawer", 20, features, root=tmp_path / "drawer")
    said = ["open the drawer"] * 3 + ["pick up the cup"] * 2
    for task in said:
        frame = {"observation.state": np.zeros(8, "f4"), "action": np.zeros(7, "f4")}
        dataset.add_frame({**frame, "task": task})
    dataset.save_episode()
    dataset.finalize()
    roots = [small_dataset[0], tmp_path / "drawer"]
    windows = TrainingWindows(find_episodes(roots, NEEDED, False), NEEDED)
    first = len(windows) - len(said)
    asked = windows.batch(np.array([0, *range(first, len(windows))]))["task"]
    assert asked == ["lift the can", *said]

    tasks = tmp_path / "drawer/meta/tasks.parquet"
    tasks.write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"tasks\.parquet is unreadable"):
        TrainingWindows(find_episodes(roots, NEEDED, False), NEEDED)


def test_several_observation_steps_stay_inside_the_episode(small_dataset):
    root, _ = small_dataset
    needed = dataclasses.replace(NEEDED, observation_steps=(-1, 0))
    windows = TrainingWindows(find_episodes([root], needed, False), needed)
    seen = windows.batch(np.array([12, 13]))["observation.state"]
    assert seen.shape == (2, 2, 8)
    np.testing.assert_array_equal(seen[0, 0], seen[0, 1])  # an episode's first frame
    np.testing.assert_array_equal(seen[1, 0], seen[0, 1])


def test_failures_are_left_out_unless_all_are_asked_for(small_dataset, tmp_path):
    root, _ = small_dataset
    assert [e.index for e in find_episodes([root], NEEDED, True)] == [0, 1, 3, 4]
    assert len(find_episodes([root], NEEDED, False)) == 5
    write_dataset(tmp_path / "failed", (4,), failures=(0,))
    with pytest.raises(DataError, match="has no episode that ended in success"):
        find_episodes([tmp_path / "failed"], NEEDED, True)


def test_a_dataset_of_another_robot_is_refused(small_dataset):
    needed = dataclasses.replace(NEEDED, action_dim=6)
    with pytest.raises(DataError, match=r"action has shape \(7,\), the policy takes \(6,\)"):
        find_episodes([small_dataset[0]], needed, True)


def with_camera(root, side=16, fps=20):
    """A dataset of one episode with a camera."""
    columns = recorded_episode(np.random.default_rng(0), 4)
    columns[CAMERA] = np.zeros((5, side, side, 3), np.uint8)
    writer = EpisodeWriter(root, Recording("lift the can", fps))
    writer.add(columns)
    writer.finish()
    return root


def test_datasets_that_one_batch_cannot_hold_are_refused(tmp_path):
    needed = dataclasses.replace(
        NEEDED,
        shapes={**NEEDED.shapes, CAMERA: (3, 16, 16)},
        names={**NEEDED.names, CAMERA: CAMERA},
    )
    small = with_camera(tmp_path / "small")
    alike = find_episodes([small, with_camera(tmp_path / "alike")], needed, True)
    assert TrainingWindows(alike, needed).batch(np.array([0, 4]))[CAMERA].shape == (2, 3, 16, 16)
    large = with_camera(tmp_path / "large", side=24)
    said = (
        rf"small has {CAMERA} of shape \(16, 16, 3\) and .*large of shape \(24, 24, 3\): .* "
        "record both at one, or leave one out"
    )
    with pytest.raises(DataError, match=said):
        find_episodes([small, large], needed, True)
    assert len(find_episodes([small, large], NEEDED, True)) == 2  # nobody looks at the images


def test_datasets_of_two_rates_are_refused(tmp_path):
    paths = [with_camera(tmp_path / "slow"), with_camera(tmp_path / "fast", fps=50)]
    with pytest.raises(DataError, match=r"slow has 20 frames per second and .*fast 50: "):
        find_episodes(paths, NEEDED, True)


def test_draws_follow_the_number_of_the_update_and_the_weights(small_dataset, tmp_path):
    root, _ = small_dataset
    write_dataset(tmp_path / "other", (100,))
    episodes = find_episodes([root, tmp_path / "other"], NEEDED, False)
    windows = TrainingWindows(episodes, NEEDED, (3.0, 1.0), seed=5)
    again = TrainingWindows(episodes, NEEDED, (3.0, 1.0), seed=5)
    rows = windows.rows_of_update(7, 4000)
    np.testing.assert_array_equal(rows, again.rows_of_update(7, 4000))
    assert (rows != windows.rows_of_update(8, 4000)).any()
    assert (rows < 51).mean() == pytest.approx(0.75, abs=0.03)
    even = TrainingWindows(episodes, NEEDED, seed=5).rows_of_update(7, 4000)
    assert (even < 51).mean() == pytest.approx(51 / 151, abs=0.03)


def test_held_out_episodes_are_of_every_source_and_never_learnt_from(small_dataset, tmp_path):
    root, _ = small_dataset
    write_dataset(tmp_path / "other", (5, 5, 5))
    episodes = find_episodes([root, tmp_path / "other"], NEEDED, False)
    train, held = hold_out(episodes, 0.2, seed=3)
    assert {(e.source, e.index) for e in train}.isdisjoint({(e.source, e.index) for e in held})
    assert len(train) + len(held) == 8
    assert {e.source for e in held} == {0, 1}
    assert hold_out(episodes, 0.0, seed=3)[1] == []


def dataset(root, task, lengths=(4,)):
    with EpisodeWriter(root, Recording(task, 20)) as writer:
        for length in lengths:
            writer.add(recorded_episode(np.random.default_rng(0), length))
        writer.finish()
    return root


def test_each_window_is_told_its_own_task(tmp_path):
    roots = [dataset(tmp_path / task, task) for task in ("lift", "push")]
    windows = TrainingWindows(find_episodes(roots, NEEDED, False), NEEDED)
    assert windows.batch(np.array([0, len(windows) - 1, 1]))["task"] == ["lift", "push", "lift"]


def test_a_source_of_one_episode_is_learnt_from(tmp_path):
    roots = [dataset(tmp_path / "one", "lift"), dataset(tmp_path / "two", "lift", (4, 4))]
    train, held = hold_out(find_episodes(roots, NEEDED, False), 0.1, seed=0)
    assert [e.source for e in train] == [0, 1]
    assert [e.source for e in held] == [1]


def test_other_seeds_draw_other_frames_and_hold_other_episodes_back(small_dataset, tmp_path):
    episodes = find_episodes([dataset(tmp_path / "many", "lift", (2,) * 40)], NEEDED, False)
    drawn, held = zip(
        *(
            (
                tuple(TrainingWindows(episodes, NEEDED, seed=seed).rows_of_update(0, 20)),
                tuple(episode.index for episode in hold_out(episodes, 0.25, seed)[1]),
            )
            for seed in (0, 1, 0)
        ),
        strict=True,
    )
    for found in (drawn, held):
        assert found[0] == found[2] != found[1]
    assert [len(each) for each in held] == [10] * 3


# --- where windows begin --------------------------------------------------------------------------


def marked(root, marks, lengths=(12, 9, 7)):
    """Episodes with a column `start`; windows may begin at these frames of each."""
    rng = np.random.default_rng(0)
    with EpisodeWriter(root, Recording("lift", 20)) as writer:
        for length, own in zip(lengths, marks, strict=True):
            columns = recorded_episode(rng, length)
            columns["start"] = np.isin(np.arange(length + 1), own)
            writer.add(columns)
        writer.finish()
    return root


def test_windows_begin_at_the_frames_that_are_marked(small_dataset, tmp_path):
    some = marked(tmp_path / "some", [(0, 5), (), (3,)])  # 12 + 7 frames with a mark
    windows = TrainingWindows(find_episodes([some], NEEDED, False), NEEDED)
    assert set(windows.rows_of_update(0, 200)) == {0, 5, 12 + 3}
    assert np.concatenate(ValidationBatches(windows, 2).rows).tolist() == [0, 5, 15]
    assert np.concatenate(ValidationBatches(windows, 2, most=2).rows).tolist() == [0, 15]
    episodes = find_episodes([some, small_dataset[0]], NEEDED, False)  # which marks nothing
    windows = TrainingWindows(episodes, NEEDED, (3.0, 1.0))
    rows = windows.rows_of_update(0, 4000)
    assert set(rows[rows < 19]) == {0, 5, 15}
    assert (rows < 19).mean() == pytest.approx(0.75, abs=0.03)
    for seed in range(5):  # whatever is held out, both have a window
        for part in hold_out(find_episodes([some], NEEDED, False), 0.5, seed):
            assert len(TrainingWindows(part, NEEDED).starts)


def test_a_draw_past_the_last_sum_is_the_last_frame_that_is_marked(tmp_path):
    root = marked(tmp_path / "some", [(0,), (1,), (2,)])
    windows = TrainingWindows(find_episodes([root], NEEDED, False), NEEDED)
    windows._cumulative = windows._cumulative * 1e-9
    assert set(windows.rows_of_update(0, 9)) == {12 + 9 + 2}


def test_a_dataset_that_marks_no_frame_is_refused(small_dataset, tmp_path):
    root = marked(tmp_path / "none", [(), (), ()])
    with pytest.raises(DataError, match="none: start marks no frame of the episodes"):
        find_episodes([small_dataset[0], root], NEEDED, False)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["action", "observation.state"])
def test_what_is_not_finite_is_refused_where_it_would_be_learnt_from(tmp_path, column):
    rng = np.random.default_rng(0)
    with EpisodeWriter(tmp_path / "bad", Recording("lift", 20)) as writer:
        for number in range(3):
            columns = recorded_episode(rng, 6, success=number != 1)
            if number == 1:
                columns[column][4, 2] = np.nan
            writer.add(columns)
        writer.finish()
    said = rf"bad, episode 1: {column} is not finite in frame 4; leave the episode out"
    with pytest.raises(DataError, match=said):
        find_episodes([tmp_path / "bad"], NEEDED, False)
    assert len(find_episodes([tmp_path / "bad"], NEEDED, True)) == 2  # it failed, nobody learns it


def test_a_dataset_that_is_given_twice_is_refused(small_dataset, tmp_path):
    root, _ = small_dataset
    (tmp_path / "link").symlink_to(root)
    for paths in ([root, tmp_path / "link"], [tmp_path, root]):
        with pytest.raises(DataError, match="is given twice: an episode that is held out of the"):
            find_episodes(paths, NEEDED, False)
