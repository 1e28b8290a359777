"""HIL-SERL's pickles: what is in them, and what is not run."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hilserl_files import transitions, write_transitions

from pld_ray.cli import main
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import Wanted, episodes_of
from pld_ray.data.errors import DataError
from pld_ray.data.hilserl import convert_hilserl, read_transitions

SHAPES = {"observation.state": (4,), "observation.images.wrist_1": (8, 8, 3)}
WANTED = Wanted(SHAPES, np.full(3, -1.0), np.full(3, 1.0), 10, "peg")


def test_every_transition_comes_back(tmp_path, capsys):
    """Files in the order of their numbers, episodes with their final observation."""
    write_transitions(tmp_path / "demos/transitions_1000.pkl", seed=1)
    write_transitions(tmp_path / "demos/transitions_900.pkl")
    argv = ["convert", "hilserl", str(tmp_path / "demos"), "--repo_id=lab/peg", "--fps=10"]
    assert main([*argv, f"--root={tmp_path / 'd'}"]) == 0
    assert "4 episodes, 10 frames" in capsys.readouterr().out
    found = [e for _, e in episodes_of(Dataset(tmp_path / "d"), WANTED, successes_only=False)]
    was = [*transitions(), *transitions(seed=1)]
    assert np.array_equal(
        np.concatenate([e["action"][:-1] for e in found]), np.stack([t["actions"] for t in was])
    )
    for name, key in (("state", "observation.state"), ("wrist_1", "observation.images.wrist_1")):
        for mine, theirs in (
            ([e[key][:-1] for e in found], "observations"),
            ([e[key][1:] for e in found], "next_observations"),
        ):
            assert np.array_equal(
                np.concatenate(mine), np.concatenate([t[theirs][name] for t in was])
            )
    assert [e["success"][-2] for e in found] == [True, False, True, False]
    assert [e["terminated"][-2] for e in found] == [True, False, True, False]
    assert [e["truncated"][-2] for e in found] == [False, True, False, True]
    assert [e["intervened"].tolist() for e in found[:2]] == [
        [True, *[False] * 3],
        [True, False, False],
    ]


def test_what_a_person_did_is_no_path_from_one_takeover_to_the_next(tmp_path):
    """A demo_buffer: two takeovers in an episode that failed, one that ended the next one well."""
    rows = transitions(lengths=(9, 5))
    kept = [rows[k] for k in (1, 2, 5, 12, 13)]
    kept[-1] |= {"dones": True, "rewards": 1.0, "masks": 0.0}
    for steps, part in ((1000, kept), (2000, [])):  # nobody took over since
        (tmp_path / f"transitions_{steps}.pkl").write_bytes(pickle.dumps(part))
    writer = convert_hilserl(tmp_path, tmp_path / "d", 10, "insert")
    assert (writer.lengths, writer.successes) == ([2, 1, 2], [False, False, True])
    found = [e for _, e in episodes_of(Dataset(tmp_path / "d"), WANTED, successes_only=False)]
    assert [e["terminated"][-2] for e in found] == [False, False, True]
    assert [e["truncated"][-2] for e in found] == [True, True, False]
    for episode, last in zip(found, (2, 5, 13), strict=True):
        final = rows[last]["next_observations"]["state"][0]
        np.testing.assert_array_equal(episode["observation.state"][-1], final)


def test_a_folder_without_a_transition_is_refused(tmp_path):
    (tmp_path / "transitions_1000.pkl").write_bytes(pickle.dumps([]))
    with pytest.raises(DataError, match="holds no transition: give what HIL-SERL recorded"):
        convert_hilserl(tmp_path, tmp_path / "d", 10, "insert")
    assert not (tmp_path / "d").exists()


def test_what_cannot_be_read_begins_no_dataset(tmp_path, capsys):
    source, root = tmp_path / "demos", tmp_path / "d"
    argv = ["convert", "hilserl", str(source), "--repo_id=lab/peg", f"--root={root}", "--fps=10"]
    assert main(argv) == 2
    assert f"{source} is not there: give the folder that HIL-SERL wrote" in capsys.readouterr().err
    stacked = transitions()
    stacked[0]["observations"]["state"] = np.zeros((2, 4), np.float32)
    for content in (b"no pickle", pickle.dumps(stacked)):
        source.mkdir(exist_ok=True)
        (source / "transitions_1000.pkl").write_bytes(content)
        assert main(argv) == 2
        assert not root.exists()
    write_transitions(source / "transitions_1000.pkl")
    assert main([*argv, "--task=another"]) == 0


def test_a_used_folder_is_refused_before_a_file_is_read(tmp_path):
    (tmp_path / "demos.pkl").write_bytes(b"no pickle")
    with pytest.raises(DataError, match="holds something already; give a new folder"):
        convert_hilserl(tmp_path / "demos.pkl", tmp_path, 10, "insert")


def test_the_steps_per_second_must_be_given(tmp_path, capsys):
    source = write_transitions(tmp_path / "demos.pkl")
    argv = ["convert", "hilserl", str(source), "--repo_id=lab/peg", f"--root={tmp_path / 'd'}"]
    assert main(argv) == 2
    assert "--fps is missing: hilserl's pickles do not tell" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
    assert main([*argv, "--fps=5"]) == 0
    assert Dataset(tmp_path / "d").fps == 5


def test_a_sensor_that_gives_nothing_cuts_no_episode(tmp_path):
    rows = transitions()
    for row in rows:
        for seen in (row["observations"], row["next_observations"]):
            seen["extra"] = np.array([1.0], object)  # of which NumPy does not know what it holds
    rows[0]["next_observations"]["state"][0, 1] = np.nan
    seen = {name: value.copy() for name, value in rows[0]["next_observations"].items()}
    rows[1]["observations"] = seen  # equal, as pickles of two steps give it
    source = tmp_path / "demos.pkl"
    source.write_bytes(pickle.dumps(rows))
    assert convert_hilserl(source, tmp_path / "d", 10, "insert").lengths == [3, 2]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--push_to_hub"], "--push_to_hub: without effect on hilserl's pickles"),
        (["--episodes=0", "--mode=image"], "--mode, --episodes: without effect"),
        (["--score=good=1"], "--score: without effect"),
    ],
)
def test_flags_of_aloha_alone_are_refused(flags, said, tmp_path, capsys):
    source = write_transitions(tmp_path / "demos.pkl")
    argv = ["convert", "hilserl", str(source), "--repo_id=lab/peg", f"--root={tmp_path / 'd'}"]
    assert main([*argv, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_killed_it_goes_on(tmp_path):
    source = write_transitions(tmp_path / "demos.pkl")

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as held:  # its traceback keeps the writer
        convert_hilserl(source, tmp_path / "d", 10, "insert", killed)
    added = []
    writer = convert_hilserl(source, tmp_path / "d", 10, "insert", lambda: added.append(1))
    assert (writer.lengths, len(added)) == ([3, 2], 1)
    del held


class Evil:
    def __reduce__(self):
        return (exec, ("import pathlib; pathlib.Path('ran').touch()",))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps([{"observations": Evil()}]), r"calls builtins\.exec\), and that was not run"),
        (pickle.dumps(transitions())[:100], "is no pickle of arrays alone"),
        (pickle.dumps({"a": 1}), "holds no list of transitions"),
        (pickle.dumps([{"observations": {}}]), "lack next_observations, actions, rewards, dones"),
        (b"", "is no pickle of arrays alone"),
    ],
)
def test_what_is_not_read(tmp_path, monkeypatch, content, said):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demos.pkl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_transitions(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rewards", ..., "may not lack rewards"),
        ("rewards", "x", "rewards are no numbers"),
        ("rewards", np.nan, "rewards are not finite"),
        ("rewards", [0.0, 1.0], r"rewards have shape \(2,\), need one number"),
        ("actions", np.array([0, np.inf, 0]), "actions are not finite"),
        ("actions", np.zeros((1, 3)), r"actions have shape \(1, 3\), need a vector"),
        ("dones", None, "dones are not finite"),
        ("masks", None, "masks are not finite"),
        ("infos", 5, "infos are no dictionary"),
        ("observations", [1.0], "observations are no dictionary of arrays"),
        ("next_observations", {}, "next_observations are no dictionary of arrays, or an empty"),
        ("observations", {"state": "x"}, "state of its observations holds no numbers"),
        ("observations", {"eye": np.zeros((8, 8), np.uint8)}, r"eye has shape \(8, 8\), need"),
        ("observations", {"state": np.zeros(0)}, r"state has shape \(0,\), need a vector"),
    ],
)
def test_a_transition_of_no_use_is_named(tmp_path, name, value, said):
    rows = transitions()
    rows[1][name] = value
    if value is ...:
        del rows[1][name]
    path = tmp_path / "demos.pkl"
    path.write_bytes(pickle.dumps(rows))
    with pytest.raises(DataError, match=said) as refused:
        convert_hilserl(path, tmp_path / "d", 10, "insert")
    assert str(refused.value).startswith(f"{path}, transition 1: ")
    assert not (tmp_path / "d").exists()


def test_stacked_frames_are_refused(tmp_path):
    rows = transitions()
    rows[0]["observations"]["state"] = np.zeros((2, 4), np.float32)
    (tmp_path / "demos.pkl").write_bytes(pickle.dumps(rows))
    with pytest.raises(DataError, match="state stacks 2 frames, need one"):
        convert_hilserl(tmp_path / "demos.pkl", tmp_path / "d", 10, "insert")
    (tmp_path / "d").mkdir()  # it was not begun
    with pytest.raises(DataError, match=r"holds no \*\.pkl"):
        convert_hilserl(tmp_path / "d", tmp_path / "e", 10, "insert")
