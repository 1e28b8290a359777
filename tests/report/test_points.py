import pathlib

from hypothesis import given
from hypothesis import strategies as st

from pld_ray.report.inputs import Selection
from pld_ray.report.points import group, parse_point
from pld_ray.report.runs import Run

names = st.from_regex(r"[a-z]{1,8}(\.[a-z_]{1,10})?", fullmatch=True)
values = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(lambda x: f"{x:.4g}"),
    st.lists(st.integers(0, 999)).map(str),
    st.sampled_from(["linear", "True", "None", "/data/a b"]),
)
axes = st.lists(names, min_size=1, max_size=3, unique=True).map(", ".join)


@given(st.dictionaries(axes, values, max_size=4))
def test_the_tag_of_a_point_is_taken_apart_again(point):
    text = ", ".join(f"{axis}={value}" for axis, value in point.items())
    assert parse_point(text) == point


def run(run_id, params=None, **tags):
    return Run(run_id, run_id, "FINISHED", 0, "", params or {}, tags)


def points(*runs, sweeps=(), folders=None):
    selection = Selection([*runs], [*sweeps], [], folders or {})
    return {p.label: [r.run_id for r in p.runs] for p in group(selection)}


def test_trials_are_grouped_by_their_tag():
    text = "algorithm.utd={}, algorithm.gamma=0.9"
    runs = [run(f"r{i}", point=text.format(i % 2), seed=str(i)) for i in range(4)]
    assert points(*runs) == {"utd=0": ["r0", "r2"], "utd=1": ["r1", "r3"]}


def test_other_runs_are_grouped_by_the_parameters_in_which_they_differ():
    same = {"algorithm.gamma": "0.98"}
    runs = [
        run("a", {**same, "algorithm.utd": "1", "seed": "0", "output_dir": "x"}),
        run("b", {**same, "algorithm.utd": "1", "seed": "1", "output_dir": "y"}),
        run("c", {**same, "algorithm.utd": "2", "seed": "0", "output_dir": "z"}),
    ]
    assert points(*runs) == {"utd=1": ["a", "b"], "utd=2": ["c"]}


def test_names_that_would_clash_stay_long():
    runs = [
        run("a", point="env.size=1, policy.size=2"),
        run("b", point="env.size=2, policy.size=3"),
    ]
    assert list(points(*runs)) == ["env.size=1, policy.size=2", "env.size=2, policy.size=3"]


def test_equal_points_of_two_sweeps_stay_apart():
    sweeps = [run("p1", sweep="one"), run("p2", sweep="two")]
    runs = [run(f"r{p}", point="a=1", **{"mlflow.parentRunId": p}) for p in ("p1", "p2")]
    assert points(*runs, sweeps=sweeps) == {"p1: a=1": ["rp1"], "p2: a=1": ["rp2"]}


def test_runs_that_do_not_differ_are_one_point():
    runs = [run(name, {"seed": str(i)}) for i, name in enumerate("abc")]
    assert points(*runs) == {"3 runs alike": ["a", "b", "c"]}
    assert points(runs[0]) == {"a": ["a"]}


def test_how_often_and_on_how_much_a_run_was_evaluated_is_no_setting():
    keys = ("interval_steps", "validation_states", "held_states", "num_env_runners")
    evaluation = [f"evaluation.{key}" for key in keys]
    other = ("checkpoint.keep", "tracking.enabled", "dump_interval", "ray_port")
    runs = [
        run(name, {key: str(number) for key in (*evaluation, *other)})
        for number, name in enumerate("ab")
    ]
    assert points(*runs) == {"2 runs alike": ["a", "b"]}
    stopped = [run(str(rate), {"evaluation.stop_success": str(rate)}) for rate in (0.8, 0.9)]
    assert list(points(*stopped)) == ["stop_success=0.8", "stop_success=0.9"]  # it ends a run


def policies(*paths, **tags):
    """How runs with these values of `policy.path` are grouped, `tags` being one for each."""
    runs = [
        run(str(number), {"policy.path": path}, **{k: v[number] for k, v in tags.items()})
        for number, path in enumerate(paths)
    ]
    return points(*runs)


def test_a_path_that_is_written_whole_and_relative_is_one_setting():
    assert policies("act/b", "/home/me/act/b") == {"2 runs alike": ["0", "1"]}
    two = policies("./act/b", "/home/me/act/b", "act/c")
    assert two == {"path=./act/b": ["0", "1"], "path=act/c": ["2"]}
    assert len(policies("/x/fact/b", "act/b")) == 2  # whole parts
    assert len(policies("/x/act/b", "/y/act/b")) == 2
    assert len(policies("/x/act/b", "/y/act/b", "act/b")) == 3  # nobody knows which one it was
    listed = [run(p[2:4], {"demo_path": p}) for p in ('["a", "b"]', '["/x/a", "/x/b"]')]
    assert len(points(*listed)) == 1
    assert len(points(*listed, run("less", {"demo_path": '["/x/a"]'}))) == 2
    other = [run(text, {"env.task": text}) for text in ("lift", "/x/lift")]
    assert len(points(*other)) == 2  # it is no path


def test_a_policy_is_known_by_its_fingerprint_wherever_it_lies():
    two = policies("/x/act", "/y/act", "/y/other", base_policy=["1", "1", "2"])
    assert two == {"path=/x/act": ["0", "1"], "path=/y/other": ["2"]}
    assert len(policies("/x/act", "/y/act", "act", base_policy=["1", "1", "1"])) == 1
    assert len(policies("/x/act", "act", base_policy=["1", "2"])) == 2


LONG = {f"algorithm.parameter_{i}": "a_rather_long_value" for i in range(4)}


def long_runs(*names, places=None):
    return [
        run(name, {key: f"{value}_{number}" for key, value in LONG.items()}, run_dir=place)
        for number, (name, place) in enumerate(zip(names, places or names, strict=True))
    ]


def test_runs_whose_names_would_be_long_are_called_by_their_folders():
    runs = long_runs("a", "b", places=["/outputs/lift", "/outputs/again"])
    twin = run("c", runs[1].params, run_dir="/outputs/once_more", seed="7")
    assert points(*runs, twin) == {"lift": ["a"], "again and 1 more": ["b", "c"]}
    selection = Selection(runs, [], [], {"a": pathlib.Path("/elsewhere/renamed")})
    first, second = group(selection)
    assert (first.name, first.label, first.by_folder) == ("renamed", "renamed", True)
    assert first.values == {key: f"{value}_0" for key, value in LONG.items()}
    assert second.name == "again"


def test_folders_are_named_with_as_many_parts_as_tell_them_apart():
    runs = long_runs("a", "b", places=["/x/lift/run", "/x/pick/run"])
    assert list(points(*runs)) == ["lift/run", "pick/run"]
    same = long_runs("0" * 32, "1" * 32, places=["/x/run", "/x/run"])
    assert list(points(*same)) == ["run 00000000", "run 11111111"]
    assert list(points(*long_runs("a", "b", places=["", ""]))) == ["a", "b"]  # their names


def test_short_names_and_those_of_trials_stay():
    (alone,) = group(Selection(long_runs("a" * 70), [], []))  # it differs from none
    assert (alone.label, alone.by_folder) == ("a" * 70, False)
    texts = [", ".join(f"{key}={value}_{i}" for key, value in LONG.items()) for i in range(2)]
    trials = [run(text[-1], point=text, run_dir=f"/trials/t{text[-1]}") for text in texts]
    assert all(label.startswith("parameter_0=a_rather_long_value_") for label in points(*trials))
