"""Flags: in both forms, before what a command requires, and never without an effect."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pld_ray.cli import classifier, distill, finetune, main, sweep, train
from pld_ray.cli.completion import with_settings
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.file import dump_config, load_config


def refused(args, capsys) -> str:
    assert main(args) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


# --- lists that are given item by item --------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "paths"),
    [
        (["[a, b]", "c"], ["a", "b", "c"]),
        (["c", "[a, b]"], ["c", "a", "b"]),
        (["[a]", '["b"]'], ["a", "b"]),
        (["[]", "c"], ["c"]),
        (["[2024-01-01, 7]"], ["2024-01-01", "7"]),
    ],
)
def test_a_list_may_be_given_in_parts(texts, paths):
    args = [f"--demo_path={text}" for text in texts]
    assert load_config(ACRLPDTrainConfig, args).demo_path == paths


def test_a_list_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match=r"--demo_path=\[a is not valid YAML"):
        load_config(TrainConfig, ["--demo_path=[a", "--demo_path=b"])
    with pytest.raises(ConfigError, match=r"demo_path=\[\['a'\]\]: must be a list of texts"):
        load_config(TrainConfig, ["--demo_path=[[a]]"])


def test_datasets_are_arguments_and_flags(capsys):
    assert main(["finetune", "dsA", "--dataset=dsB", "dsC", "--print_config"]) == 0
    assert "dataset:\n- dsA\n- dsC\n- dsB\n" in capsys.readouterr().out


# --- `--key value` ----------------------------------------------------------------------------


def test_a_settings_value_is_no_argument(tmp_path):
    found = sweep.parser().read(["--max_concurrent", "1", "smoke.yaml", "--dry_run"])
    assert (found.file, found.dry_run) == ("smoke.yaml", True)
    assert found.settings == ["--max_concurrent=1"]
    found = classifier.parser().read(["--steps", "10", "train", "--lr", "-1"])
    assert (found.action, found.settings) == ("train", ["--steps=10", "--lr=-1"])
    found = train.parser().read(["--resume", "run", "--dry_run", "--seed"])
    assert (found.resume, found.settings) == ("run", ["--seed"])
    found = finetune.parser().read(["dsA", "--seed", "3", "dsB"])
    assert finetune.datasets_and_flags(found.settings) == (["dsA", "dsB"], ["--seed=3"])
    found = distill.parser().read(["--seed", "3", "run"])
    assert finetune.datasets_and_flags(found.settings) == (["run"], ["--seed=3"])


@pytest.fixture
def stored(tmp_path):
    (tmp_path / "config.yaml").write_text(dump_config(TrainConfig(output_dir=str(tmp_path))))
    return str(tmp_path)


@pytest.mark.parametrize("settings", [["--total_steps", "40000"], ["--total_steps=40000"]])
def test_a_run_goes_on_with_either_form(settings, stored):
    assert train.resumed_config(stored, settings, False).total_steps == 40000


def test_a_run_goes_on_without_other_settings(stored, capsys):
    args = ["train", f"--resume={stored}", "--total_steps=9", "--seed", "3", "--config_path=pld"]
    told = refused(args, capsys)
    assert "--resume takes the run's own configuration; remove --seed, --config_path (only" in told
    told = refused(["train", f"--resume={stored}", "--total_step=9"], capsys)
    assert "did you mean total_steps" in told


# --- what is asked of the configuration alone -------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["collect", "--explain", "env.task"], "env.task\n"),
        (["collect", "--print_config"], "env:\n"),
        (["classifier", "--explain", "steps"], "steps\n  Updates."),
        (["classifier", "--explain=env.task"], "env.task\n"),
        (["classifier", "collect", "--explain=env.task"], "env.task\n"),
        (["classifier", "collect", "--explain=runners"], "runners\n"),
        (["classifier", "train", "--explain=seed"], "seed\n"),
        (["classifier", "--print_config"], "dataset: []\n"),
        (["classifier", "train", "--print_config"], "dataset: []\n"),
        (["classifier", "evaluate", "--print_config"], "dataset: []\n"),
    ],
)
def test_nothing_is_required_where_the_configuration_is_asked_for(args, said, capsys):
    assert main(args) == 0
    assert capsys.readouterr().out.startswith(said)


def test_a_key_that_both_have_is_explained_of_the_action(capsys):
    assert main(["classifier", "collect", "--explain=seed"]) == 0
    of_collect = capsys.readouterr().out
    assert main(["train", "--explain=seed"]) == 0
    assert capsys.readouterr().out == of_collect
    assert main(["classifier", "train", "--explain=seed"]) == 0
    assert capsys.readouterr().out != of_collect


def test_what_is_required_still_is(capsys):
    assert "--root is missing" in refused(["collect"], capsys)
    assert "ACTION is missing" in refused(["classifier"], capsys)
    assert "--classifier=DIR is missing" in refused(["classifier", "evaluate"], capsys)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["export", "run", "--to="], "--to= is empty: write --to=DIR"),
        (["export", "", "--to=x"], "RUN is empty; usage: pld-ray export RUN --to=DIR"),
        (["ls", ""], "FOLDER is empty; usage: pld-ray ls [FOLDER]"),
        (["report", "a", ""], "RUN_OR_SWEEP is empty"),
        (["collect", "--root", ""], "--root= is empty: write --root=DIR"),
        (["norm-stats", "x", "--delta="], "--delta= is empty"),
        (["eval", "--checkpoint=x", "--videos="], "--videos= is empty"),
        (["train", "--resume="], "--resume= is empty: write --resume=RUN_DIR"),
    ],
)
def test_an_empty_argument_is_none(args, said, capsys):
    assert said in refused(args, capsys)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["train", "--dry-run"], "flag --dry-run does not exist; did you mean --dry_run?"),
        (["train", "--dryrun", "--seed=3"], "did you mean --dry_run?"),
        (["collect", "--roots=x"], "did you mean --root?"),
        (["ls", "--trails"], "flag --trails does not exist; did you mean --trials?"),
        (["norm-stats", "x", "--horizen=3"], "did you mean --horizon?"),
        (["report", "x", "--output-dir=y"], "did you mean --output_dir?"),
        (["--versio"], "did you mean --version?"),
        (["train", "--sed=3"], "flag --sed does not exist; did you mean seed?"),
        (["collect", "--root=x", "--env.tsk=y"], "did you mean env.task?"),
        (["collect", "--root=x", "--demo_episode=all"], "did you mean demo_episodes?"),
        (["train", "--checkpoint.kepp=3"], "did you mean checkpoint.keep?"),
        (["ls", "--nonsense"], "--nonsense is none of its flags; usage: pld-ray ls"),
    ],
)
def test_a_flag_that_does_not_exist_is_answered_with_the_nearest(args, said, capsys):
    assert said in refused(args, capsys)


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/test")
    found = train.parser().read(["--resume=~/run"])
    assert found.resume == "/home/of/test/run"
    found = sweep.parser().read(["~/sweep.yaml", "--output_dir=~/out"])
    assert (found.file, found.settings) == ("/home/of/test/sweep.yaml", ["--output_dir=~/out"])


@pytest.mark.parametrize(
    "args",
    [
        ["collect", "--root=s3://bucket/x"],
        ["classifier", "collect", "--root=s3://bucket/x"],
        ["convert", "hilserl", "recordings", "--repo_id=me/x", "--root=s3://bucket/x"],
        ["data", "recordings", "--output=s3://bucket/x"],
        ["norm-stats", "recordings", "--output=s3://bucket/x"],
        ["eval", "--checkpoint=best", "--output_dir=s3://bucket/x"],
        ["export", "run", "--to=s3://bucket/x"],
        ["report", "run", "--output_dir=s3://bucket/x"],
        ["distill", "run", "--output_dir=s3://bucket/x"],
        ["finetune", "recordings", "--output_dir=s3://bucket/x"],
        ["train", "--output_dir=s3://bucket/x"],
        ["train", "--offline_cache=s3://bucket/x", "--dry_run"],
        ["pretrain", "--output_dir=s3://bucket/x"],
        ["acrlpd", "--demo_path=recordings", "--output_dir=s3://bucket/x"],
        ["classifier", "train", "--dataset=recordings", "--output_dir=s3://bucket/x"],
    ],
)
def test_a_bucket_is_no_folder_of_this_machine(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(args, capsys)
    assert "=s3://bucket/x: must be a path on this machine: mount the bucket" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("typed", "known", "unknown"),
    [
        (["pld-ray", "classifier", "collect"], "--env.task", "--steps"),
        (["pld-ray", "classifier", "train"], "--steps", "--env.task"),
    ],
)
def test_the_keys_of_an_action_are_completed(typed, known, unknown):
    parser = with_settings(classifier.parser(), "classifier", typed)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert known in flags
    assert unknown not in flags
    assert {"env.task", "steps"} <= set(parser.configuration_keys())


# --- flags that go with another ---------------------------------------------------------------


def test_a_sweep_is_not_started_by_a_flag_that_wants_to_look(capsys, monkeypatch):
    monkeypatch.setattr("pld_ray.sweep.run.run_sweep", lambda sweep: pytest.fail("it started"))
    file = "experiments/sweeps/smoke.yaml"
    assert "--json goes with --dry_run" in refused(["sweep", file, "--json"], capsys)
    told = refused(["sweep", file, "--trust", "--dry_run"], capsys)
    assert "--trust goes with --resume=DIR" in told
    told = refused(["sweep", "--resume=nowhere", "--json"], capsys)
    assert "--json goes with --dry_run" in told


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
def test_a_score_is_a_finite_number(reward, capsys):
    told = refused(
        ["convert", "aloha", "x", "--repo_id=a/b", "--root=y", f"--score=good={reward}"], capsys
    )
    assert f"--score=good={reward}: must be FOLDER=REWARD" in told


def test_a_folder_has_one_score(capsys):
    args = ["convert", "aloha", "x", "--repo_id=a/b", "--root=y"]
    told = refused([*args, "--score=good=1", "--score=bad=0", "--score=good/=0"], capsys)
    assert "--score=good is given twice: keep one of them" in told


@pytest.mark.parametrize("flag", ["output=q.html", "episodes=0"])
def test_a_page_that_is_not_written_has_no_place(flag, capsys):
    told = refused(["data", "nowhere", "--no_page", f"--{flag}"], capsys)
    assert f"--{flag.partition('=')[0]} is of the page, which --no_page leaves out" in told


# --- readers that go away ---------------------------------------------------------------------


@pytest.mark.parametrize("args", ["--help", "--version", "train --explain=seed", "nonsense"])
@pytest.mark.parametrize("buffering", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(args, buffering):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "pld_ray.cli", *args.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": buffering},
        text=True,
    )
    os.close(writing)
    told = "pld-ray: 'nonsense' is no command" if args == "nonsense" else ""
    assert done.stderr.startswith(told)
    assert bool(done.stderr) == bool(told)
    assert done.returncode == (2 if told else 0)
