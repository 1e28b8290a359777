"""Sweeps on a real local cluster: processes die, and every trial ends with every point once."""

from __future__ import annotations

import csv
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
import yaml
from chaos import Planted, wait_for
from mlflow.tracking import MlflowClient

from pld_ray.cli import main
from pld_ray.config import ConfigError
from pld_ray.runs.journal import TIME
from pld_ray.runs.run_dir import RunDir
from pld_ray.sweep.config import load_sweep
from pld_ray.sweep.ended import ended_figures, note_ended
from pld_ray.sweep.folder import load_folder
from pld_ray.sweep.outcome import as_csv, trial_rows
from pld_ray.sweep.run import run_sweep, sigterm_as_interrupt, trial_configs
from pld_ray.tracking.mlflow_record import read_record

pytestmark = pytest.mark.usefixtures("ray_cluster")

SMALL = {
    "env.entry_point": "envs.point:PointEnv",
    "env.suite": "point",
    "env.task": "reach_the_goal",
    "env.kwargs": {"episode_length": 20, "step_s": 0.002},
    "policy.type": "none",
    "algorithm.offline_episodes": 0,
    "algorithm.warmup_steps": 100,
    "algorithm.warmup_actions": "random",
    "algorithm.use_probing": False,
    "algorithm.compose_base": False,
    "algorithm.residual_dims": [],
    "algorithm.batch_size": 16,
    "algorithm.hidden_dims": [16, 16],
    "algorithm.actor_delay_updates": 0,
    "algorithm.utd": 0.1,
    "runners.num_env_runners": 0,
    "evaluation.interval_steps": 400,
    "evaluation.held_states": 2,
    "evaluation.validation_states": 2,
    "checkpoint.interval_steps": 200,
    "total_steps": 900,
}
SWEEP = {
    "set": SMALL,
    "space": {"algorithm.residual_scale": {"grid": [0.5, 1.0]}},
    "seeds": [0, 1],
}


@pytest.fixture
def sweep_file(tmp_path):
    file = tmp_path / "little.yaml"
    file.write_text(yaml.safe_dump(SWEEP, sort_keys=False))
    return file


def rows(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def children(folder):
    record = json.loads((folder / "mlflow_run.json").read_text())
    client = MlflowClient(record["tracking_uri"])
    parent = client.get_run(record["run_id"])
    query = f"tags.`mlflow.parentRunId` = '{record['run_id']}'"
    return client, parent, client.search_runs([parent.info.experiment_id], query)


def check_points(folder):
    """Every row of every trial's history is in MLflow exactly once, and nothing else is."""
    client, _, runs = children(folder)
    assert len(runs) == len(list((folder / "trials").glob("t*")))
    for run in runs:
        history = rows(folder / "trials" / run.data.tags["trial"])
        expected = Counter(
            (key, row["env_steps"])
            for row in history
            for key, value in row.items()
            if key not in ("env_steps", TIME) and value is not None
        )
        logged = Counter(
            (key, point.step)
            for key in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, key)
        )
        assert max(logged.values()) == 1
        assert set(expected) <= set(logged)


def kill_first_trial(folder):
    """SIGKILL the process of t0000 after its first checkpoint."""
    victim = folder / "trials" / "t0000"
    wait_for(lambda: list(victim.glob("checkpoints/step_*")), "the first checkpoint")
    pid = json.loads((victim / "run.lock").read_text())["pid"]
    assert os.readlink(f"/proc/{pid}/cwd") == os.getcwd()  # relative paths of the configuration
    os.kill(pid, signal.SIGKILL)


def check_ended(folder, num_trials):
    """All trials ended, in the table and in MLflow, every point once."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["state"] == "finished"
    assert (summary["num_finished"], summary["num_failed"]) == (num_trials, 0)
    with (folder / "trials.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["trial"] for row in table] == [f"t{i:04d}" for i in range(num_trials)]
    assert all(int(row["env_steps"]) >= SMALL["total_steps"] for row in table)
    check_points(folder)
    _, parent, runs = children(folder)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["sweep/num_finished"] == num_trials
    assert {run.info.status for run in runs} == {"FINISHED"}
    return runs


def test_a_killed_trial_goes_on_and_has_every_point_once(sweep_file, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "before" / "sweep"
    folder.parent.mkdir()
    typed, store = os.path.relpath(folder), os.path.relpath(folder.parent / "x.db")
    flags = [f"--output_dir={typed}", f"--tracking.uri=sqlite:///{store}", "--seeds=[3]"]
    killer = threading.Thread(target=kill_first_trial, args=[folder])
    killer.start()
    assert main(["sweep", str(sweep_file), *flags]) == 0
    killer.join()
    runs = check_ended(folder, 2)
    points = {f"algorithm.residual_scale={scale}" for scale in (0.5, 1)}
    assert {run.data.tags["point"] for run in runs} == points
    assert {run.data.params["seed"] for run in runs} == {"3"}
    (killed,) = (run for run in runs if run.data.tags["trial"] == "t0000")
    assert int(killed.data.tags["resumed_at_step"]) >= 200
    check_what_the_parent_says(folder)
    log = (folder / "train.log").read_text()
    assert "the sweep begins: 2 trials" in log
    assert "t0001 finished" in log
    assert "the sweep is finished after" in log
    config = RunDir(folder / "trials" / "t0000").load_config()
    assert config.tracking.uri == f"sqlite:///{tmp_path}/before/x.db"
    monkeypatch.chdir("/")
    check_resume(folder)
    (tmp_path / "before").rename(tmp_path / "now")
    capsys.readouterr()
    check_it_goes_on_elsewhere(tmp_path / "now", capsys)


def check_resume(folder):
    """A resumed sweep runs no ended trial again, and opens no pickle of its folder."""
    ended, cut_off = (folder / "trials" / name for name in ("t0000", "t0001"))
    # what a sweep knows that is stopped before Tune has come to its trials again
    assert as_csv(trial_rows(folder, [])).splitlines() == read_lines(folder / "trials.csv")
    (cut_off / "summary.json").unlink()
    (cut_off / "ended.json").unlink()
    assert [row["state"] for row in trial_rows(folder, [])] == ["finished", "open"]
    before = (ended / "summary.json").stat().st_mtime_ns
    owned = folder.parent / "owned"
    planted = [path for path in (folder / "tune").rglob("*") if path.is_file()]
    assert "tuner.pkl" in {path.name for path in planted}
    for path in (*planted, folder / "tuner.pkl", cut_off / "state.pkl"):
        path.write_bytes(pickle.dumps(Planted(owned)))
    assert main(["sweep", f"--resume={folder}"]) == 0
    assert not owned.exists()
    assert (ended / "summary.json").stat().st_mtime_ns == before, "it was run again"
    assert (cut_off / "summary.json").is_file()
    check_ended(folder, 2)


def check_it_goes_on_elsewhere(place, capsys):
    """Where its folder and its MLflow store have been moved to, as it is told."""
    folder, uri = place / "sweep", f"sqlite:///{place}/x.db"
    assert main(["sweep", f"--resume={folder}"]) == 2
    assert "is missing: give its new place with --tracking.uri=sqlite" in capsys.readouterr().err
    assert main(["sweep", f"--resume={folder}", "--seeds=[1]"]) == 2
    assert "no other flags than --ray_address, --tracking.uri, --trac" in capsys.readouterr().err
    assert load_folder(folder).base.placement.check
    anew = [f"--tracking.uri={uri}", "--placement.check=false", "--placement.wait_s=5"]
    assert main(["sweep", f"--resume={folder}", *anew]) == 0
    placement = load_folder(folder).base.placement
    assert (placement.check, placement.wait_s) == (False, 5.0)
    assert read_record(folder)["tracking_uri"] == uri
    assert load_sweep([str(folder / "sweep.yaml")]).config.tracking.uri == uri
    check_ended(folder, 2)


def read_lines(path):
    return path.read_text().splitlines()


def check_what_the_parent_says(folder):
    """Which setting is ahead, how sure that is, and a figure for each; all of the held states."""
    client, parent, runs = children(folder)
    held = {
        run.data.params["algorithm.residual_scale"]: run.data.metrics["eval/held_residual_success"]
        for run in runs
    }
    metrics = parent.data.metrics
    assert metrics["held_success/residual_scale 0.5"] == held["0.5"]
    assert metrics["held_success/residual_scale 1"] == held["1.0"]
    assert metrics["sweep/best_held_success"] == max(held.values())
    (point,) = client.get_metric_history(parent.info.run_id, "sweep/best_held_success")
    assert point.step == sum(
        rows(folder / "trials" / t)[-1]["env_steps"] for t in ("t0000", "t0001")
    )
    note = parent.data.tags["mlflow.note.content"]
    assert "2 of 2 trials finished" in note
    assert "not separable from the other one" in note  # one run of each
    assert "| 1 | algorithm.residual_scale=" in note
    files = {file.path for file in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report/report.html", "report/curves.png"} <= files
    assert {run.info.run_name for run in runs} == {
        "t0000 residual_scale=0.5 seed=3",
        "t0001 residual_scale=1 seed=3",
    }


@pytest.fixture
def own_interrupt():
    """Python's own handler of SIGINT, whatever an earlier test of this process has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_interrupt")
def test_sigterm_is_an_interrupt_while_a_sweep_runs_and_its_handlers_go_with_it():
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # Tune's handler would take the first one for itself


@pytest.mark.chaos
def test_a_sweep_that_is_asked_to_stop_says_how_to_go_on(sweep_file, tmp_path):
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "pld_ray.cli", "sweep", str(sweep_file)]
    driver = subprocess.Popen(
        [*command, f"--output_dir={folder}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_for(lambda: list(folder.glob("trials/*/checkpoints/step_*")), "a checkpoint")
        driver.terminate()
        printed = driver.communicate(timeout=120)[0].decode()
    finally:
        driver.kill()
    assert driver.returncode in (0, 130), printed
    assert f"pld-ray sweep --resume={folder}" in printed
    assert "SIGTERM received" not in printed
    assert "Traceback" not in printed
    assert json.loads((folder / "status.json").read_text())["state"] == "interrupted"
    assert main(["sweep", f"--resume={folder}"]) == 0
    check_ended(folder, 4)


@pytest.mark.chaos
def test_a_sweep_whose_time_is_up_is_concluded(sweep_file, tmp_path):
    folder = tmp_path / "sweep"
    flags = ["--stop.wall_time_s=25", "--max_concurrent=1", "--set.total_steps=1000000"]
    assert main(["sweep", str(sweep_file), f"--output_dir={folder}", *flags]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["state"], summary["num_stopped_early"], summary["num_open"]) == (
        "finished",
        1,
        3,
    )
    _, parent, (run,) = children(folder)
    assert (parent.info.status, run.info.status) == ("FINISHED", "FINISHED")
    assert "1 stopped early" in parent.data.tags["mlflow.note.content"]


@pytest.mark.chaos
@pytest.mark.parametrize("rule", ["success=0", "trial_wall_time_s=0.01"])
def test_a_trial_ends_by_a_rule_of_its_own_and_is_held_all_the_same(rule, sweep_file, tmp_path):
    folder = tmp_path / "sweep"
    flags = [f"--stop.{rule}", "--set.total_steps=1000000"]
    assert main(["sweep", str(sweep_file), f"--output_dir={folder}", *flags]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["num_finished"], summary["num_open"]) == (4, 0), summary
    for trial in sorted(folder.glob("trials/t*")):
        evaluated = [row for row in rows(trial) if "eval/residual_success" in row]
        assert len(evaluated) == 1, trial
        assert json.loads((trial / "eval_info.json").read_text())["overall"]["n_episodes"] > 0


@pytest.mark.chaos
def test_a_trial_that_had_reported_nothing_when_time_was_up_goes_on(sweep_file, tmp_path):
    folder = tmp_path / "sweep"
    flags = ["--stop.wall_time_s=25", "--max_concurrent=1", "--set.total_steps=1000000"]
    flags += ["--set.evaluation.interval_steps=1000000", "--scheduler.type=asha"]
    assert main(["sweep", str(sweep_file), f"--output_dir={folder}", *flags]) == 0
    trial = folder / "trials" / "t0000"
    steps = rows(trial)[-1]["env_steps"]
    assert not list(folder.glob("trials/*/ended.json"))
    assert main(["sweep", f"--resume={folder}"]) == 0  # ASHA asks for the metric of what has ended
    assert rows(trial)[-1]["env_steps"] > steps
    assert json.loads((folder / "summary.json").read_text())["num_open"] == 4


def test_what_tune_itself_says_of_a_trial_is_no_end(tmp_path):
    tune_only = {"timestamp": 1795912602, "pid": 10096}
    note_ended(tmp_path, tune_only)
    assert not (tmp_path / "ended.json").exists()
    (tmp_path / "ended.json").write_text(json.dumps(tune_only))  # of a release that wrote it
    assert ended_figures(tmp_path) is None
    note_ended(tmp_path, {**tune_only, "eval/residual_success": 0.5, "done": True})
    assert ended_figures(tmp_path)["eval/residual_success"] == 0.5


@pytest.mark.chaos
def test_a_killed_sweep_is_resumed_without_running_anything_twice(sweep_file, tmp_path):
    folder = tmp_path / "sweep"
    log = (tmp_path / "log").open("w")
    command = [sys.executable, "-m", "pld_ray.cli", "sweep", str(sweep_file)]
    driver = subprocess.Popen(
        [*command, f"--output_dir={folder}"], stdout=log, stderr=subprocess.STDOUT
    )
    try:
        wait_for(lambda: list(folder.glob("trials/*/summary.json")), "the first end")
        wait_for(lambda: len(list(folder.glob("trials/t*"))) > 2, "a third trial")
    finally:
        driver.kill()
        driver.wait()
    ended = {p: p.stat().st_mtime_ns for p in folder.glob("trials/*/summary.json")}
    assert json.loads((folder / "status.json").read_text())["state"] == "running"
    pids = [json.loads(p.read_text())["pid"] for p in folder.glob("trials/*/run.lock")]
    wait_for(lambda: not any(alive(pid) for pid in pids), "the end of the trials' processes")

    assert main(["sweep", f"--resume={folder}"]) == 0
    assert {p: p.stat().st_mtime_ns for p in ended} == ended, "a finished trial was run again"
    check_ended(folder, 4)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_trial_keeps_paths_that_hold_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"set": SMALL, "variants": {"act": {"policy.path": "act"}}}
    (tmp_path / "act").mkdir()
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(content))
    sweep = load_sweep(["one.yaml"])
    monkeypatch.chdir("/")  # as the process of a trial is in another folder
    (config,) = trial_configs(sweep)
    assert config.policy.path == f"{tmp_path}/act"


def test_a_sweep_that_no_node_can_hold_is_refused(sweep_file, tmp_path, capsys):
    folder = tmp_path / "sweep"
    arguments = [f"--output_dir={folder}", "--cpus_per_trial=1000"]
    assert main(["sweep", str(sweep_file), *arguments]) == 2
    assert "the cluster is too small: no room for 1 x trial (1000 CPU)" in capsys.readouterr().err
    assert not folder.exists()


def test_a_sweep_that_comes_second_changes_nothing_of_the_first(sweep_file, tmp_path, monkeypatch):
    """The first begins while the second, that saw no sweep there, looks at its points."""
    folder = tmp_path / "sweep"
    theirs = {name: f"{name} of the first" for name in ("base.yaml", "sweep.yaml", "sweep.json")}
    hold = "import pathlib, sys; from pld_ray.files.lock import FolderLock; "
    hold += "print(FolderLock(pathlib.Path(sys.argv[1])).claim(), flush=True); sys.stdin.read()"
    others = []

    def first_begins(sweep):
        command = [sys.executable, "-c", hold, str(folder)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        others.append(subprocess.Popen(command, **pipes))
        assert others[0].stdout.readline() == b"None\n"
        for name, text in theirs.items():
            (folder / name).write_text(text)

    monkeypatch.setattr("pld_ray.sweep.run.check_points", first_begins)
    second = load_sweep([str(sweep_file), f"--output_dir={folder}"])
    try:
        with pytest.raises(ConfigError, match=r"sweep is in use by process \d+: wait for it"):
            run_sweep(second)
        assert {path.name for path in folder.iterdir()} == {*theirs, "run.lock"}
    finally:
        others[0].communicate()
    (folder / "run.lock").unlink()

    for name in theirs:  # or the first has ended meanwhile
        (folder / name).rename(tmp_path / name)
    monkeypatch.setattr(
        "pld_ray.sweep.run.check_points",
        lambda sweep: [(tmp_path / name).rename(folder / name) for name in theirs],
    )
    with pytest.raises(ConfigError, match="already holds a sweep"):
        run_sweep(second)
    assert {path.name: path.read_text() for path in folder.iterdir()} == theirs


def test_a_wrong_tracking_uri_stops_the_sweep_before_its_first_trial(sweep_file, tmp_path, capsys):
    folder = tmp_path / "sweep"
    arguments = [f"--output_dir={folder}", "--tracking.uri=htp://nowhere:1"]
    assert main(["sweep", str(sweep_file), *arguments]) == 2
    assert "htp://nowhere:1" in capsys.readouterr().err
    assert not folder.exists()


POPULATION = {
    "set": {**SMALL, "checkpoint.keep": 4},
    "num_samples": 2,
    "scheduler": {
        "type": "pbt",
        "interval_steps": 400,
        "quantile": 0.5,
        "mutations": {
            "algorithm.residual_scale": {"uniform": [0.25, 1.0]},
            "algorithm.temperature_init": {"loguniform": [0.0005, 0.02]},
            "algorithm.utd": {"choice": [0.1, 0.2]},
        },
    },
}
SEARCH = {
    "set": SMALL,
    "space": {"algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]}},
    "searcher": "optuna",
    "num_samples": 2,
    "seeds": [0, 1],
}
BRACKETS = {**SWEEP, "scheduler": {"type": "hyperband", "reduction_factor": 2}, "seeds": [0]}


@pytest.mark.learning
@pytest.mark.parametrize(
    ("content", "num_trials"),
    [(POPULATION, 2), (SEARCH, 4), (BRACKETS, 2)],
    ids=["pbt", "optuna", "hyperband"],
)
def test_every_scheduler_and_searcher_brings_all_trials_to_an_end(content, num_trials, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    folder = tmp_path / "run"
    assert main(["sweep", str(file), f"--output_dir={folder}"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["num_finished"] + summary["num_stopped_early"] == num_trials
    _, _, runs = children(folder)
    assert len(runs) == num_trials
    if content is POPULATION:  # perturbed, within bounds, and choices stay choices
        for run in runs:
            trial = folder / "trials" / run.data.tags["trial"]
            config = yaml.safe_load((trial / "config.yaml").read_text())
            assert config["algorithm"]["utd"] in (0.1, 0.2)
            assert 0.25 <= config["algorithm"]["residual_scale"] <= 1.0
    if content is SEARCH:
        assert sorted(run.data.params["seed"] for run in runs) == ["0", "0", "1", "1"]
        assert len({run.data.tags["point"] for run in runs}) == 2
