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
    return Run(run_id, run_id, "FINISHED", 0, 1, "", params or {}, tags)


def points(*runs, sweeps=()):
    return {p.label: [r.run_id for r in p.runs] for p in group(Selection([*runs], [*sweeps], []))}


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
