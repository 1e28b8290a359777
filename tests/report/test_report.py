import csv
import html.parser
import json
import pathlib
import random
import shutil
from types import SimpleNamespace as Namespace

import numpy as np
import pytest
from tracked import differing_runs, learning_run

from pld_ray.cli import main
from pld_ray.config import ConfigError
from pld_ray.report.figures import curves_chart, effect_panels, finals_chart, point_views
from pld_ray.report.formats import DASH, breakable
from pld_ray.report.headline import against_base, facts, progress_tiles, reached, tiles
from pld_ray.report.inputs import select
from pld_ray.report.points import same_seed
from pld_ray.report.runs import Run
from pld_ray.report.summary import known_mean, summarize
from pld_ray.report.tables import point_rows
from pld_ray.report.videos import find_videos
from pld_ray.report.write import make_report


@pytest.fixture(scope="module")
def made(sweep, tmp_path_factory):
    """The report of the sweep."""
    return make_report([str(sweep)], output_dir=str(tmp_path_factory.mktemp("report")))


def page_of(made) -> str:
    return pathlib.Path(made["files"][0]).read_text()


def rows_of(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Tags(html.parser.HTMLParser):
    """Names of the elements, and the addresses that they load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names, self.addresses, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.text += data


# --- what is computed -----------------------------------------------------------------------------


def test_a_sweep_is_summarised_by_point_and_ranked(sweep):
    summary = summarize(select([str(sweep)]))
    assert len(summary.points) == 12
    assert all(point.point.seeds == 3 for point in summary.points)
    ranked = [point.iqm for point in summary.points]
    assert ranked == sorted(ranked, reverse=True)
    best = summary.points[0]
    assert best.point.values["algorithm.residual_scale"] == "1"
    assert best.low <= best.iqm <= best.high
    assert summary.base == 0.56
    assert summary.importance.effects["algorithm.residual_scale"].stands_out


def test_importance_looks_at_the_runs_that_got_to_their_end(sweep):
    summary = summarize(select([str(sweep)]))
    assert len(summary.runs) == 36
    assert summary.importance.n_runs == 32  # one failed, three were stopped


def test_the_curve_says_how_far_all_seeds_got(sweep):
    points = {p.point.label: p for p in summarize(select([str(sweep)])).points}
    failed = points["residual_scale=1, utd=2"].curve  # one of its seeds failed at 12,000 steps
    assert failed.steps[failed.complete - 1] == 12_000
    assert failed.steps[-1] == 36_000
    assert len(failed.low) == failed.complete
    assert points["residual_scale=1, utd=1"].curve.complete == 12


def test_the_final_success_is_of_the_held_states_where_there_is_one(store):
    rng = random.Random(0)
    metrics = learning_run(0.9, 9_000, rng=rng)
    metrics["eval/held_residual_success"] = [(36_000, 0.77)]
    with_held = store.run("a", metrics=metrics)
    without = store.run("b", metrics=learning_run(0.9, 9_000, rng=rng, held=False))
    runs = {r.run.name: r for r in summarize(select([with_held, without], store.uri)).runs}
    assert (runs["a"].final, runs["a"].held) == (0.77, True)
    assert runs["b"].final == runs["b"].run.metrics["eval/residual_success"].last
    assert not runs["b"].held


def test_speed_is_measured_over_training_time_and_updates_since_the_first(store):
    wall = [(s, s / 50) for s in range(500, 10_001, 500)]
    updates = [(s, max(0.0, 2.0 * (s - 5_000))) for s in range(500, 10_001, 500)]
    run_id = store.run("a", metrics={"time/wall_s": wall, "updates": updates})
    (run,) = summarize(select([run_id], store.uri)).runs
    assert run.wall_s == 200
    assert run.steps_per_s == pytest.approx(50)
    assert run.updates_per_s == pytest.approx(100)


# --- what is claimed ------------------------------------------------------------------------------


def tracked_points(
    store,
    folder,
    finals,
    *,
    base=0.5,
    held_base=0.7,
    same_base=None,
    status="FINISHED",
    steps=(),
    seeds=range(9),
):
    """A sweep with one point for each list of final successes; returns its folder."""
    parent = store.run("claims", tags={"pld_ray.kind": "sweep", "sweep": "claims"}, folder=folder)
    for number, values in enumerate(finals):
        for seed, final in zip(seeds, values, strict=False):
            metrics = {
                "eval/base_success": [(0, base)],
                "eval/residual_success": steps or [(10_000, 0.6), (20_000, 0.7)],
            }
            if same_base is not None:
                metrics["eval/validation_base_success"] = [(5_000, same_base)]
            if status == "FINISHED":
                metrics["eval/held_residual_success"] = [(20_000, final)]
                metrics["eval/held_base_success"] = [(20_000, held_base)]
            point = f"algorithm.gamma=0.99, algorithm.utd={number}"
            tags = {"point": point, "trial": f"t{number}{seed}", "seed": str(seed)}
            store.run("trial", tags=tags, metrics=metrics, status=status, parent=parent)
    return str(folder)


@pytest.mark.parametrize(
    ("finals", "heading", "remark"),
    [
        ([[0.90, 0.92, 0.94], [0.50, 0.52, 0.54]], "Best setting, IQM", ""),
        ([[0.70, 0.90, 0.95], [0.60, 0.80, 0.95]], "Highest IQM", "not separable from the other"),
        ([[0.70] * 3, [0.70] * 3, [0.10] * 3], "Highest IQM", "not separable from 1 of 2 others"),
        ([[0.90, 0.94], [0.10, 0.12]], "Highest IQM", "not separable"),  # two seeds: no intervals
        ([[0.0] * 3, [0.0] * 3], "Highest IQM", "no setting succeeded in any episode"),
    ],
)
def test_a_setting_is_the_best_only_where_intervals_do_not_overlap(
    store, tmp_path, capsys, finals, heading, remark
):
    folder = tracked_points(store, tmp_path / "sweep", finals)
    (found, _, words), *_ = tiles(summarize(select([folder])))
    assert found == heading
    assert remark in words
    assert ("not separable" in words) == remark.startswith("not separable")
    assert main(["report", folder]) == 0
    crown = "best: " if heading.startswith("Best") else "highest: "
    assert f"\n{crown}algorithm.gamma=0.99, algorithm.utd=" in capsys.readouterr().out


def test_runs_that_repeat_a_seed_are_no_evidence_of_their_own(store, tmp_path):
    folder = tracked_points(store, tmp_path / "sweep", [[0.82] * 3, [0.80] * 3], seeds=[0, 0, 0])
    summary = summarize(select([folder]))
    assert [p.finals for p in summary.points] == [[pytest.approx(0.82)], [pytest.approx(0.80)]]
    assert [p.low for p in summary.points] == [None, None]
    assert [(p.curve.low, len(p.curve.runs)) for p in summary.points] == [(None, 3)] * 2
    assert "3 runs of 1 seed, no interval; not separable" in tiles(summary)[0][2]
    assert [row["n_seeds"] for row in point_rows(summary)] == [1, 1]


def test_a_repeated_seed_counts_with_the_mean_of_its_runs(store, tmp_path):
    finals, seeds = [[0.9, 0.7, 0.6, 0.4]], [0, 0, 1, 2]
    folder = tracked_points(store, tmp_path / "sweep", finals, seeds=seeds)
    (point,) = summarize(select([folder])).points
    assert point.finals == pytest.approx([0.8, 0.6, 0.4])
    assert (point.iqm, point.mean) == (pytest.approx(0.6), pytest.approx(0.6))
    assert point.low == pytest.approx(0.4)
    assert point.curve.low is not None


def test_a_parameter_is_not_more_important_for_seeds_that_are_repeated(store, tmp_path):
    finals = [[0.1 * point, 0.9, 0.2] for point in range(6)]
    once = tracked_points(store, tmp_path / "once", [[f[0], 0.55] for f in finals], seeds=[0, 1])
    twice = tracked_points(store, tmp_path / "twice", finals, seeds=[0, 1, 1])
    (a, b) = (summarize(select([folder])).importance for folder in (once, twice))
    assert (a.n_runs, b.n_runs) == (12, 12)
    assert a.effects == b.effects


def test_runs_are_alike_by_task_and_seeds_and_alone_where_none_is_known():
    def run(number, task="lift", seed="0", **params):
        tags = {"task": task, "seed": seed}
        return Run(f"{number}", "", "FINISHED", None, "", params=params, tags=tags)

    runs = [run(0), run(1, "place"), run(2), run(3, seed=""), run(4, seed="")]
    runs += [run(5, collection_seed="7"), run(6, seed="1")]
    assert same_seed(runs) == [[0, 2], [1], [3], [4], [5], [6]]


def test_the_mean_over_seeds_goes_on_with_those_that_are_left():
    values = np.array([[0.2, 0.4, np.nan], [0.4, np.nan, np.nan]])
    assert known_mean(values)[:2] == pytest.approx([0.3, 0.4])
    assert np.isnan(known_mean(values)[2])


def test_a_gain_over_the_base_policy_is_claimed_where_it_lies_outside_the_interval(store, tmp_path):
    folder = tracked_points(store, tmp_path / "sweep", [[0.66, 0.70, 0.80]])
    summary = summarize(select([folder]))
    assert against_base(summary.points[0], 0.70) == "+2 points with the residual; not separable"
    assert against_base(summary.points[0], 0.40) == "+32 points with the residual"


def test_the_base_policy_is_drawn_as_the_start_knew_it_and_as_the_end_did(store, tmp_path):
    folder = tracked_points(store, tmp_path / "sweep", [[0.8] * 3, [0.9] * 3])
    summary = summarize(select([folder]))
    assert (summary.base_of_curves, summary.base) == ((0.5, "held"), 0.7)
    views = point_views(summary)
    assert ">50 %</text>" in curves_chart(summary, views)
    assert ">base policy 70 %</text>" in finals_chart(summary, views)


def test_the_curves_have_the_base_policy_on_their_own_states_where_runs_log_it(store, tmp_path):
    folder = tracked_points(store, tmp_path / "sweep", [[0.8] * 3, [0.9] * 3], same_base=0.3)
    summary = summarize(select([folder]))
    assert (summary.base_of_curves, summary.base) == ((0.3, "same"), 0.7)
    assert ">30 %</text>" in curves_chart(summary, point_views(summary))
    stopped = tracked_points(
        store, tmp_path / "stopped", [[0.8] * 3], same_base=0.3, status="KILLED"
    )
    assert summarize(select([stopped])).base == 0.3  # of validation states, as their finals


def test_the_axis_of_success_begins_at_zero(store, tmp_path):
    folder = tracked_points(store, tmp_path / "sweep", [[0.8] * 3, [0.9] * 3])
    summary = summarize(select([folder]))
    views = point_views(summary)
    for chart in (curves_chart(summary, views), finals_chart(summary, views)):
        assert ">0 %</text>" in chart
    assert all(">0 %</text>" in panel for panel in effect_panels(summary))


def test_a_run_that_broke_off_says_nothing_of_the_steps_it_would_have_needed(store, tmp_path):
    failed = tracked_points(store, tmp_path / "failed", [[0.0] * 3], status="FAILED")
    (point,) = summarize(select([failed])).points
    assert (reached(point), [reached(run) for run in point.runs]) == (DASH, [DASH] * 3)
    whole = tracked_points(store, tmp_path / "whole", [[0.7] * 3])
    (point,) = summarize(select([whole])).points
    assert reached(point) == "> 20,000"
    seen = [(10_000, 0.6), (20_000, 0.9)]
    late = tracked_points(store, tmp_path / "late", [[0.0] * 3], status="FAILED", steps=seen)
    (point,) = summarize(select([late])).points
    assert reached(point) == "20,000"


def test_an_axis_with_one_value_is_in_no_name(store, tmp_path):
    summary = summarize(select([tracked_points(store, tmp_path / "s", [[0.8], [0.9]])]))
    assert sorted(point.point.label for point in summary.points) == ["utd=0", "utd=1"]
    assert summary.swept == ["algorithm.utd"]


def test_a_name_breaks_only_between_its_words():
    assert breakable("residual_scale and <b>utd=1.5") == (
        "residual_<wbr>scale and &lt;b&gt;utd=<wbr>1.5"
    )


def helped_run(store, folder, seed, shares, autonomous=0.9):
    """A tracked run in which a person acted in these shares of the steps."""
    metrics = learning_run(0.95, 9_000, rng=random.Random(seed))
    if shares:
        steps = range(10_000, 10_000 + 2_000 * len(shares), 2_000)
        metrics["train/intervention_share"] = list(zip(steps, shares, strict=True))
        metrics["train/assisted_success_rate"] = [(10_000, 0.5), (20_000, 0.625)]
    metrics["train/success_rate"] = [(10_000, 0.4), (20_000, autonomous)]
    params = {"seed": seed, "intervention.device": "scripted" if shares else "none"}
    store.run(f"seed {seed}", params=params, metrics=metrics, folder=folder)
    return str(folder)


def test_a_person_has_a_curve_and_columns_where_one_acted(store, tmp_path):
    helped = [helped_run(store, tmp_path / f"h{i}", i, [0.8, 0.4, 0.1 * i]) for i in range(3)]
    alone = helped_run(store, tmp_path / "alone", 3, [])
    summary = summarize(select([*helped, alone]))
    curves = {p.point.values["intervention.device"]: p.person for p in summary.points}
    assert curves["none"] is None
    assert curves["scripted"].steps.tolist() == [10_000, 12_000, 14_000]
    assert curves["scripted"].mean.tolist() == pytest.approx([0.8, 0.4, 0.1])
    made = make_report([*helped, alone], output_dir=str(tmp_path / "report"))
    tags = Tags(page_of(made))
    assert "Steps by a person" in tags.text
    assert "steps by a person over environment steps" in page_of(made)
    rows = {row["trial"]: row for row in rows_of(made["files"][2])}
    figures = ("autonomous_success", "assisted_success", "intervention_share")
    assert [rows["seed 2"][name] for name in figures] == ["0.9", "0.625", "0.2"]
    assert [rows["seed 3"][name] for name in figures] == ["0.9", "", ""]
    cells = [line.strip() for line in tags.text.splitlines()]
    assert "90.062.520.0" in "".join(cells)
    assert f"90.0{DASH}{DASH}" in "".join(cells)


def test_nothing_is_said_of_a_person_where_none_was(made):
    page = page_of(made)
    assert "by a person" not in page
    assert "autonomous" not in page


def test_runs_that_differ_in_much_are_called_by_their_folders(store, tmp_path, capsys):
    folders = differing_runs(store, tmp_path, 2)
    assert main(["report", *folders, f"--output_dir={tmp_path / 'r'}"]) == 0
    assert "\nhighest: run_0: 50%" in capsys.readouterr().out
    rows = rows_of(str(tmp_path / "r" / "points.csv"))
    assert [row["point"] for row in rows] == ["run_0", "run_1"]
    assert [row["algorithm.key_5"] for row in rows] == ["value_5_of_0", "value_5_of_1"]
    text = Tags((tmp_path / "r" / "report.html").read_text()).text
    assert "6 parameters" in text
    assert text.count("value_5_of_1") == 1  # in the table of settings alone


def test_settings_with_short_names_need_no_table_of_their_own(made):
    assert 'id="settings"' not in page_of(made)


# --- what is written ------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_is_small(made):
    page = page_of(made)
    addresses = Tags(page).addresses
    assert all(not a.startswith(("http:", "https:", "//", "file:")) for a in addresses)
    assert "@import" not in page
    assert "url(" not in page
    assert len(page) < 3_000_000


def test_the_page_shows_points_failures_early_stops_and_videos(made, sweep):
    tags = Tags(page_of(made))
    assert "residual_scale=1, utd=1" in tags.text
    assert "NonFiniteTrainingError: critic_loss is NaN at update 5,210" in tags.text
    assert "by the scheduler or the user at 15000 steps" in tags.text
    assert tags.names.count("svg") >= 7
    links = [a for a in tags.addresses if a.endswith(".mp4")]
    assert len(links) == 2
    assert "best: state 7.mp4" in tags.text
    assert links[0].endswith("/residual%20scale/trials/t0000/eval/best/videos/state%207.mp4")


def test_links_to_a_runs_videos_say_which_checkpoint_was_filmed(tmp_path):
    films = [
        *("eval/best/videos/init_state_000.mp4", "eval/final/videos/init_state_000.mp4"),
        "videos/near/a.mp4",
    ]
    for film in films:
        (tmp_path / film).parent.mkdir(parents=True)
        (tmp_path / film).touch()
    run = Run("0", "a", "FINISHED", 0, "", tags={"run_dir": str(tmp_path)})
    labels = [video.label for video in find_videos([run], [tmp_path])]
    assert labels == ["best: init_state_000.mp4", "final: init_state_000.mp4", "near/a.mp4"]


def test_a_video_outside_the_given_folders_is_a_path_without_a_link(sweep, tmp_path):
    run_id = select([str(sweep / "trials" / "t0000")]).runs[0].run_id
    uri = f"sqlite:///{sweep.parent / 'mlflow.db'}"
    tags = Tags(page_of(make_report([run_id], tracking_uri=uri, output_dir=str(tmp_path))))
    assert str(sweep / "trials" / "t0000" / "eval" / "best" / "videos" / "state 7.mp4") in tags.text
    assert not [a for a in tags.addresses if a.endswith(".mp4")]


def test_the_tables_hold_every_trial_and_every_point(made):
    _, picture, trials, points = made["files"]
    trial_rows, point_rows = rows_of(trials), rows_of(points)
    assert len(trial_rows) == 36
    assert len(point_rows) == 12
    failed = next(row for row in trial_rows if row["state"] == "FAILED")
    assert (failed["trial"], failed["final_on"], failed["algorithm.utd"]) == (
        "t0034",
        "validation",
        "2",
    )
    missed = next(row for row in point_rows if not row["steps_to_threshold"])
    assert int(missed["not_reached_by"]) in (15_000, 36_000)
    assert float(point_rows[0]["iqm_success"]) >= float(point_rows[1]["iqm_success"])
    assert pathlib.Path(picture).read_bytes().startswith(b"\x89PNG\r\n")


def test_text_from_mlflow_is_never_markup(store, tmp_path):
    evil = "<script>alert(1)</script>&\"'"
    metrics = {"eval/residual_success": [(1000, 0.5), (2000, 0.9)], "residual_scale": [(1000, 0.1)]}
    parent = store.run(evil, tags={"pld_ray.kind": "sweep", "sweep": evil}, folder=tmp_path / "s")
    for i in range(8):
        store.run(
            evil,
            tags={"point": f"env.task={evil}{i}", "trial": evil, "failure": evil, "task": evil}
            | {"stopped": evil, "cluster": evil, "run_dir": evil, "preset": evil, "seed": evil},
            params={"env.task": f"{evil}{i}"},
            metrics=metrics,
            status="FAILED",
            parent=parent,
        )
    page = page_of(make_report([str(tmp_path / "s")]))
    tags = Tags(page)
    assert tags.names.count("script") == 1
    assert "<script>alert" not in page
    assert evil in tags.text


# --- little data ----------------------------------------------------------------------------------


def test_a_single_run_is_a_report_without_an_interval(store, tmp_path):
    rng = random.Random(0)
    store.run("seed 0", metrics=learning_run(0.95, 9_000, rng=rng), folder=tmp_path / "run")
    made = make_report([str(tmp_path / "run")])
    assert made["files"][0] == str(tmp_path / "run" / "report" / "report.html")
    assert made["points"][0]["n_seeds"] == 1
    assert made["points"][0]["ci95_low"] is None
    assert "1 run, no interval" in Tags(page_of(made)).text


def test_a_run_without_evaluations_says_so(store, tmp_path, capsys):
    store.run("young", metrics={"updates": [(500, 0.0)]}, status="RUNNING", folder=tmp_path / "r")
    assert main(["report", str(tmp_path / "r")]) == 0
    assert "missing: no evaluation in 1 of 1 run" in capsys.readouterr().out
    text = Tags((tmp_path / "r" / "report" / "report.html").read_text()).text
    assert "No run has an evaluation yet" in text
    assert "No run has logged its training time" in text


def test_a_sweep_without_trials_says_so(store, tmp_path):
    store.run("empty", tags={"pld_ray.kind": "sweep"}, folder=tmp_path / "sweep")
    made = make_report([str(tmp_path / "sweep")])
    assert made["missing"] == ["no run: the sweep has no trial yet"]
    assert rows_of(made["files"][2]) == []


def test_two_seeds_show_their_results_in_place_of_an_interval(store, tmp_path):
    for seed, final in enumerate((0.62, 0.84)):
        metrics = {
            "eval/residual_success": [(1000, 0.5), (2000, final)],
            "eval/held_residual_success": [(2000, final)],
        }
        params = {"seed": seed, "output_dir": f"run{seed}"}
        store.run(f"seed {seed}", params=params, metrics=metrics, folder=tmp_path / f"run{seed}")
    made = make_report([str(tmp_path / f"run{i}") for i in (0, 1)], output_dir=str(tmp_path / "r"))
    (point,) = made["points"]
    assert (point["n_seeds"], point["iqm_success"], point["ci95_low"]) == (2, 0.73, None)
    assert "62.0, 84.0" in Tags(page_of(made)).text


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_its_figures_as_json(sweep, tmp_path, capsys):
    args = ["report", str(sweep), f"--output_dir={tmp_path}", "--threshold=0.9", "--json"]
    assert main(args) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["threshold"] == 0.9
    assert len(printed["trials"]) == 36
    assert "steps to 90 %" in Tags((tmp_path / "report.html").read_text()).text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "RUN_OR_SWEEP is missing; usage: pld-ray report"),
        (["x", "--treshold=0.8"], "--treshold does not exist; did you mean --threshold?"),
        (["x", "--threshold=80"], "--threshold=80: must be a success rate in (0, 1]"),
        (["x", "--threshold=high"], "--threshold=high: must be a success rate"),
        (["x"], "x: no such folder, and no MLflow run id"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_status_2(args, words, capsys):
    assert main(["report", *args]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize("name", ["report.html", "curves.png", "trials.csv", "points.csv"])
def test_a_file_that_no_report_wrote_is_left_alone(made, sweep, tmp_path, name):
    for path in made["files"]:
        shutil.copy(path, tmp_path)  # a report's own files are in nobody's way
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} exists and was not written by pld-ray report"):
        make_report([str(sweep / "trials" / "t0000")], output_dir=str(tmp_path))
    assert (tmp_path / name).read_text() == "mine"


def test_a_report_takes_the_place_of_an_older_one(made, sweep, tmp_path):
    for path in made["files"]:
        shutil.copy(path, tmp_path)
    again = make_report([str(sweep / "trials" / "t0000")], output_dir=str(tmp_path))
    assert len(rows_of(again["files"][2])) == 1


def test_an_output_folder_that_cannot_be_made_is_one_sentence(sweep, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output_dir=.*file/report cannot be written"):
        make_report([str(sweep / "trials" / "t0000")], output_dir=str(tmp_path / "file" / "report"))


# --- what a reader looks for first ----------------------------------------------------------------


def told(status="FINISHED", wall_s=None, env_steps=0, start_ms=0, task="lift_it", **tags):
    run = Namespace(status=status, env_steps=env_steps, start_ms=start_ms, task=task, tags=tags)
    return Namespace(run=run, wall_s=wall_s)


def setting(iqm, low=None, high=None, seeds=1, steps=float("inf"), missed_by=None):
    return Namespace(
        iqm=iqm,
        low=low,
        high=high,
        steps_to_threshold=steps,
        missed_by=missed_by,
        finals=[iqm] * seeds,
        runs=[Namespace(final=iqm)] * seeds,
        point=Namespace(seeds=seeds, label="utd=2"),
    )


def test_runs_and_their_time_are_added_up():
    ended = [told("FINISHED", 30_000, 1_000), told("FINISHED", 9_600, 500)]
    runs = [*ended, told("KILLED"), told("RUNNING", 0), told("RUNNING")]
    assert progress_tiles(Namespace(runs=runs)) == [
        ("Runs finished", "2 of 5", "1 interrupted, 2 running"),
        ("Training time", "11.0 h", "1.5k steps in all"),
    ]
    alone = progress_tiles(Namespace(runs=[told(wall_s=90)]))
    assert alone[0] == ("Runs finished", "1 of 1", "none failed")
    assert progress_tiles(Namespace(runs=[told("SCHEDULED")])) == [
        ("Runs finished", "0 of 1", "1 waiting")
    ]


def test_what_was_run_is_told_in_one_table():
    runs = [told(start_ms=1_760_000_000_000 + 60_000 * k, preset="pld") for k in (2, 0, 1)]
    points = [setting(0.5, seeds=1), setting(0.5, seeds=2)]
    found = dict(facts(Namespace(runs=runs, points=points)))
    assert found == {
        "task": "lift it",
        "runs": "3: 2 settings, 1-2 runs of each",
        "preset": "pld",
        "started": "2025-10-09 08:53 UTC",
    }
    many = [told(task=f"task_{k}") for k in range(4)]
    found = dict(facts(Namespace(runs=many, points=[setting(0.5, seeds=4)])))
    assert found["task"] == "task 0, task 1, task 2 and more"
    assert found["runs"] == "4: 1 setting, 4 runs of each"


@pytest.mark.parametrize(
    ("best", "base", "words"),
    [
        (setting(0.75, 0.7, 0.8), 0.7, "+5 points with the residual; not separable"),
        (setting(0.75, 0.7, 0.8), 0.8, "-5 points with the residual; not separable"),
        (setting(0.75, 0.7, 0.8), 0.9, "-15 points with the residual"),
        (setting(0.75, 0.7, 0.8), 0.6, "+15 points with the residual"),
        (setting(0.75), 0.75, "the same with the residual; no interval"),
        (setting(None), 0.5, "-50 points with the residual; no interval"),
    ],
)
def test_a_gain_is_a_difference_and_says_how_sure_it_is(best, base, words):
    assert against_base(best, base) == words


@pytest.mark.parametrize(
    ("best", "value", "words"),
    [
        (setting(0.5, seeds=2, missed_by=9_000), "> 9k", "not reached by half of its runs"),
        (setting(0.5, missed_by=9_000), "> 9k", "not reached"),
        (setting(0.5, seeds=2, steps=9_000), "9k", "reached by half of its runs"),
        (setting(0.5, steps=9_000), "9k", "first evaluation there"),
    ],
)
def test_the_steps_to_the_threshold_are_of_half_of_the_runs_or_of_the_one(best, value, words):
    summary = Namespace(best=best, base=None, points=[best], rivals=[], threshold=0.8, runs=[])
    heading, *_ = tiles(summary)
    assert heading == (
        "Success",
        "50 %",
        f"{len(best.finals)} run{'s' * (best.point.seeds > 1)}, no interval",
    )
    assert tiles(summary)[1] == ("Steps to 80 %", value, words)
