"""What `pld-ray train` says at its end, and other commands of what to do next."""

import dataclasses
import json
import pathlib
import shlex

import pytest

from pld_ray.cli import collect, main
from pld_ray.cli.sweep import conclude
from pld_ray.cli.train import finished as over
from pld_ray.cli.train import reached
from pld_ray.config import TrackingConfig, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs.train import continuing
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FAILED, FINISHED
from pld_ray.tracking.tags import note

SUMMARY = {
    "base_success": 0.5,
    "residual_success": 0.9,
    "n_episodes": 100,
    "env_steps": 36_000,
    "total_wall_s": 60.0,
    "checkpoint": "run/checkpoints/best",
}


@pytest.mark.parametrize("tracked", [True, False])
def test_a_report_is_suggested_where_there_is_a_store_to_make_it_from(
    tracked, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("pld_ray.jobs.train.train", lambda *args: SUMMARY)
    folder = tmp_path / "run"
    settings = ["--env.entry_point=envs.point:PointEnv", "--policy.type=none"]
    tracking = f"--tracking.enabled={str(tracked).lower()}"
    assert main(["train", *settings, tracking, f"--output_dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert f"next: pld-ray show {folder}\n" in out
    assert (f"pld-ray report {folder}\n" in out) == tracked
    assert "pld-ray eval --checkpoint=run/checkpoints/best\n" in out  # it draws no pictures


def test_films_are_suggested_of_what_draws_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pld_ray.jobs.train.train", lambda *args: SUMMARY)
    assert main(["train", "--tracking.enabled=false", f"--output_dir={tmp_path / 'run'}"]) == 0
    assert "eval --checkpoint=run/checkpoints/best --videos=0\n" in capsys.readouterr().out


FINISHED_RUN = [
    "--policy.type=none",
    "--algorithm.offline_episodes=0",
    "--tracking.enabled=false",
    "--total_steps=36000",
    "--algorithm.warmup_actions=random",
    "--env.entry_point=envs.point:PointEnv",
    "--runners.num_gpus_per_learner=1",  # which this machine need not have
]


@pytest.fixture
def finished(tmp_path):
    run = RunDir(tmp_path / "a run")
    run.create(load_config(TrainConfig, [*FINISHED_RUN, "--evaluation.stop_success=0.9"]))
    summary = {**SUMMARY, "best_validation_success": 0.95}
    (run.path / "summary.json").write_text(json.dumps(summary))
    run.set_status(FINISHED)
    return run


def test_a_run_that_has_finished_says_so_at_once_and_how_to_train_on(finished, monkeypatch, capsys):
    trained = []
    monkeypatch.setattr("pld_ray.jobs.train.train", lambda *args: trained.append(args) or {})
    resume = ["train", f"--resume={finished.path}"]
    assert main(resume) == 0
    out = capsys.readouterr().out
    assert not trained
    again = f"--resume='{finished.path}' --evaluation.stop_success=null --total_steps=72000"
    assert f"has finished; to train on: pld-ray train {again}\n" in out
    assert "learnt policy 90% on 100 held init states, 36000 environment steps, 60 s\n" in out
    config, summary = finished.load_config(), {**SUMMARY, "best_validation_success": 0.95}
    config.total_steps = 50_000
    assert reached(config, summary) == ["--evaluation.stop_success=null"]


def test_a_run_with_something_left_to_do_is_not_taken_for_finished(finished):
    config = finished.load_config()
    assert over(config, finished)
    for anew in ({"total_steps": 50_000}, {"tracking": TrackingConfig()}):  # where nothing is yet
        longer = dataclasses.replace(config, **anew)
        longer.evaluation = dataclasses.replace(config.evaluation, stop_success=None)
        assert not over(longer, finished), anew
    finished.set_status(FAILED)
    assert not over(config, finished)


def test_a_run_that_has_something_to_send_is_not_taken_for_finished(finished):
    config = finished.load_config()
    config.tracking.enabled = True
    finished.keep_config(config)
    outbox, record = finished.path / "mlflow_outbox.jsonl", finished.path / "mlflow_run.json"
    ended = {"run_id": "a", "kind": "status", "status": "FINISHED", "time": 3}
    sent = {"run_id": "a", "metrics": 9, "values": 2, "artifacts": 9}
    outbox.write_text(json.dumps(ended) + "\n")
    record.write_text(json.dumps({"tracking_uri": "sqlite:///x.db", "run_id": "a"}))
    for values, complete in ((2, False), (3, True)):
        (finished.path / "mlflow_sent.json").write_text(json.dumps({**sent, "values": values}))
        assert bool(over(config, finished)) == complete
    outbox.write_text("{\n" + outbox.read_text())  # whoever goes on with it says so
    assert not over(config, finished)
    outbox.write_text(json.dumps(ended) + "\n")
    record.unlink()  # a new run is wanted
    assert not over(config, finished)


def test_what_a_finished_run_names_lies_where_it_is_now(finished, tmp_path):
    finished.path.rename(tmp_path / "moved")
    moved = RunDir(tmp_path / "moved")
    best = over(moved.load_config(), moved)["checkpoint"]
    assert best == str(moved.checkpoints / "best")


def test_printed_commands_can_be_pasted_where_a_folder_s_name_has_a_space(tmp_path, capsys):
    folder = tmp_path / "a run"
    summary = {f"num_{name}": 1 for name in ("finished", "trials", "stopped_early", "failed")}
    best = {"best_success": 1.0, "trial": "t0", "point": "", "folder": str(folder)}
    conclude({**summary, "name": "it", "num_open": 1, "wall_s": 1.0, "best": best}, folder)
    said = capsys.readouterr().out.splitlines()[2:]
    said += [continuing(RunDir(folder)).removeprefix("continue with:")]
    said += [note(TrainConfig(), "tabletop", folder).rpartition("with `")[2].removesuffix("`")]
    paths = [shlex.split(line)[-1].rpartition("=")[2] for line in said]
    best_one = str(folder / "checkpoints" / "best")
    assert paths == [str(folder), best_one, *[str(folder)] * 3]


def test_what_was_recorded_is_trained_on_in_its_own_environment(tmp_path):
    def flags(*argv):
        args = collect.parser().read([f"--root={tmp_path}", *argv])
        return collect.recorded(args, collect.configured(args))

    given = ["--config_path=tabletop", "--env.task=lift_the_can"]
    assert flags(*given) == given
    run = RunDir(tmp_path / "run")
    own = [*given[1:], "--env.kwargs={side: 0.5}", "--env.entry_point=envs.point:PointEnv"]
    run.create(load_config(TrainConfig, [*own, "--policy.type=none"]))
    checkpoint = pathlib.Path(run.checkpoints / "best")
    checkpoint.mkdir()
    (checkpoint / "residual_sac.json").write_text("{}")
    found = flags(f"--checkpoint={checkpoint}", "--trust", "--seed=3")
    again, recorded = load_config(TrainConfig, found), run.load_config()
    assert (again.env, again.policy) == (recorded.env, recorded.policy)
    assert again.seed == TrainConfig().seed
