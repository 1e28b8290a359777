"""`pld-ray train` and `eval` as a user runs them, small."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal

import pytest
import torch
from mlflow.tracking import MlflowClient
from point_demonstrations import record as record_demonstrations

from envs.point import PointEnv
from pld_ray.cli import main
from pld_ray.jobs import training_loop
from pld_ray.jobs.build import check_environment
from pld_ray.rllib.algorithm import ResidualSAC
from pld_ray.rllib.learners import LearnerLostError
from pld_ray.runs.journal import Journal
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.runs.status import INTERRUPTED, read_status

BASE = "eval/base_success"
LITTLE = [
    "--algorithm.offline_episodes=1",
    "--algorithm.warmup_steps=100",
    "--algorithm.batch_size=16",
    "--algorithm.hidden_dims=[16,16]",
    "--algorithm.utd=0.1",
    "--runners.num_env_runners=0",
    "--checkpoint.interval_steps=500",
    "--checkpoint.keep=1",
]
SMALL = [
    *LITTLE,
    "--env.task=lift_the_can",
    "--env.episode_length=60",
    "--runners.sample_steps=60",
    "--evaluation.interval_steps=500",
    "--evaluation.held_states=3",
    "--evaluation.validation_states=1",
]
POINT = [
    *LITTLE,
    "--env.entry_point=envs.point:PointEnv",
    "--env.kwargs={episode_length: 60, side: 0.15}",
    "--runners.sample_steps=50",
    "--evaluation.interval_steps=700",
    "--evaluation.held_states=2",
    "--evaluation.validation_states=2",
]
"""The shipped base policy in an environment that costs nothing."""
MANY_HELD = [flag.replace("held_states=2", "held_states=10") for flag in POINT]
"""Of them one is a success, and they are not over at once."""
BRIEF = ["--tracking.enabled=false", "--total_steps=700"]


pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_cluster):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", *SMALL, "--total_steps=1000", f"--output_dir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def delayed(tmp_path_factory, ray_cluster):
    """A run whose actor waits for most of it, and the evaluations that it asked for."""
    asked = []
    start = ResidualSAC.start_evaluation

    def start_evaluation(self, states, contestants, **options):
        asked.append((states, sorted(contestants)))
        return start(self, states, contestants, **options)

    folder = tmp_path_factory.mktemp("point") / "delayed"
    argv = ["train", *MANY_HELD, "--total_steps=2000", "--algorithm.actor_delay_updates=110"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResidualSAC, "start_evaluation", start_evaluation)
        assert main([*argv, "--tracking.enabled=false", f"--output_dir={folder}"]) == 0
    return folder, asked


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Of many steps each, in the place of successes of a base policy that was not made for it."""
    root = record_demonstrations(tmp_path_factory.mktemp("demonstrations") / "data")
    return f"--demo_path={root}"


def test_a_run_leaves_everything_it_promises(finished):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["env_steps"] >= 1000
    assert summary["updates"] > 0
    assert 0 <= summary["base_success"] <= 1
    info = json.loads((finished / "eval_info.json").read_text())
    assert info["overall"]["n_episodes"] == 3
    assert info["overall"]["pc_success"] == pytest.approx(100 * summary["residual_success"])
    assert info["base"]["overall"]["pc_success"] == pytest.approx(100 * summary["base_success"])
    assert (finished / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert "checkpoint" in (finished / "train.log").read_text()
    names = {p.name for p in (finished / "checkpoints").iterdir()}
    assert {"best", "final"} <= names
    assert len([n for n in names if n.startswith("step_")]) == 1  # keep=1
    client = MlflowClient(summary["mlflow_tracking_uri"])
    run = client.get_run(summary["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.batch_size"] == "16"
    assert read_status(finished).state == "finished"
    assert run.data.metrics["system/process_memory_mb"] > 10
    assert run.data.metrics["eval/held_residual_success"] == summary["residual_success"]
    artifacts = {a.path for a in client.list_artifacts(summary["mlflow_run_id"])}
    assert {"eval_info.json", "learning_curve.png", "config.yaml", "train.log"} <= artifacts


def test_the_base_policy_plays_the_validation_states_once_and_is_the_residual_until_it_moves(
    delayed,
):
    """Two of three validations come before the actor's first step: the second plays nothing."""
    folder, asked = delayed
    held, validation = list(range(10)), [10, 11]
    before = [(held, ["base"]), (validation, ["base"]), (validation, [])]
    assert asked == [*before, (validation, ["residual"]), (held, ["residual"])]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first, second, last = [row for row in rows if "eval/residual_success" in row]
    assert [row["env_steps"] for row in (first, second, last)] == [1000, 1500, 2000]
    assert first["eval/validation_base_success"] == first["eval/residual_success"]
    assert second["eval/residual_success"] == first["eval/residual_success"]
    assert all("eval/validation_base_success" not in row for row in (second, last))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["validation_base_success"] == first["eval/residual_success"]


def test_the_base_policy_is_evaluated_beside_the_collection_where_there_are_runners(delayed):
    """Its episodes are those that are played before it else; a run that is over first waits."""
    before, _ = delayed
    folder = before.parent / "beside"
    argv = ["train", *MANY_HELD, "--total_steps=500", "--evaluation.num_env_runners=1"]
    assert main([*argv, "--tracking.enabled=false", f"--output_dir={folder}"]) == 0
    infos = [json.loads((run / "eval_info.json").read_text()) for run in (before, folder)]
    assert infos[0]["base"]["per_task"] == infos[1]["base"]["per_task"]
    known = [
        [row["env_steps"] for row in Journal(run / "metrics.jsonl").rows() if BASE in row]
        for run in (before, folder)
    ]
    assert known[0] == [0]
    assert len(known[1]) == 1
    assert known[1][0] > 0


def test_a_run_that_reads_the_collection_repeats_the_one_that_made_it(finished):
    """So does one that is resumed before its first checkpoint: it begins anew, with the cache."""
    again = finished.parent / "again"
    argv = ["train", *SMALL, "--total_steps=1000", "--tracking.enabled=false"]
    assert len(list((finished.parent / "cache").iterdir())) == 1
    assert main([*argv, f"--output_dir={again}"]) == 0
    assert len(list((finished.parent / "cache").iterdir())) == 1
    rows = [
        [
            {
                key: value
                for key, value in json.loads(line).items()
                if not key.startswith(("time/", "system/"))
            }
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (finished, again)
    ]
    assert rows[0] == rows[1]
    steps = [row["env_steps"] for row in rows[0] if "train/success_rate" in row]
    assert steps[:2] == [540, 1080]  # rounds of 60 until an iteration has its 500
    assert [row["env_steps"] for row in rows[0] if "eval/residual_success" in row] == [540, 1080]


def test_eval_of_a_checkpoint_agrees_with_the_run_and_needs_no_gpu(
    finished, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    folder = tmp_path / "learnt_on_a_gpu"
    shutil.copytree(finished, folder)
    config = (folder / "config.yaml").read_text()
    assert config.count("num_gpus_per_learner: 0.0") == 1
    gpu = config.replace("num_gpus_per_learner: 0.0", "num_gpus_per_learner: 1.0")
    (folder / "config.yaml").write_text(gpu)
    assert main(["eval", f"--checkpoint={folder / 'checkpoints' / 'best'}"]) == 0
    assert "on 3 held init states" in capsys.readouterr().out
    assert main(["train", f"--resume={folder}", "--total_steps=9000"]) == 2
    assert "--resume=RUN --runners.num_gpus_per_learner=0" in capsys.readouterr().err
    ours = json.loads((folder / "eval" / "best" / "eval_info.json").read_text())
    run = json.loads((finished / "eval_info.json").read_text())
    assert ours["base"]["overall"]["eval_s"] > 0
    assert ours["checksum"] == run["checksum"]  # of the same checkpoint, elsewhere
    for key in ("success", "sum_reward", "length", "init_state_id"):
        assert [e[key] for e in ours["episodes"]] == [e[key] for e in run["episodes"]]


def test_eval_never_plays_the_states_that_chose_the_checkpoint(finished, capsys):
    checkpoint = finished / "checkpoints" / "best"
    assert main(["eval", f"--checkpoint={checkpoint}", "--n_episodes=4"]) == 2
    error = capsys.readouterr().err
    assert "--n_episodes=4: this run held 3 init states back" in error
    assert "the next 1 chose its checkpoint: give 3 at most" in error


@pytest.mark.parametrize("flags", [[], ["--dry_run"]], ids=str)
def test_an_existing_run_is_not_overwritten(flags, finished, capsys):
    assert main(["train", *SMALL, f"--output_dir={finished}", *flags]) == 2
    assert "already holds a run: continue it with --resume" in capsys.readouterr().err


def test_interrupt_saves_and_resume_continues_the_same_run(finished, monkeypatch, capsys):
    folder = finished.parent / "interrupted"
    record = training_loop.TrainingLoop.record

    def record_then_stop(self, row, env_steps=None):
        record(self, row, env_steps)
        if self.algorithm.updates:
            signal_self()

    def signal_self():
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, "record", record_then_stop)
        assert main(["train", *POINT, "--total_steps=900", f"--output_dir={folder}"]) == 0
    assert f"continue with: pld-ray train --resume={folder}" in capsys.readouterr().out
    assert not (folder / "summary.json").exists()
    assert read_status(folder).state == "interrupted"
    run_id = json.loads((folder / "mlflow_run.json").read_text())["run_id"]
    before = json.loads((folder / "checkpoints/interrupted" / PROGRESS_FILE).read_text())

    assert main(["train", f"--resume={folder}", "--total_steps=1100"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["mlflow_run_id"] == run_id
    assert summary["env_steps"] >= 1100
    assert summary["total_wall_s"] > summary["train_wall_s"]  # of both lives
    assert RunDir(folder).load_config().total_steps == 1100  # also for a resume without the flag
    assert summary["updates"] > before["updates"] > 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps)
    assert MlflowClient(summary["mlflow_tracking_uri"]).get_run(run_id).info.status == "FINISHED"


def test_a_stop_is_not_forgotten_when_a_learner_is_lost_meanwhile(finished, monkeypatch, capsys):
    folder, failed = finished.parent / "stop_and_loss", []
    iterate = training_loop.TrainingLoop.iterate

    def stop_then_lose(self, progress=None):
        row = iterate(self, progress)
        if self.algorithm.updates:
            self.save_periodic()
            os.kill(os.getpid(), signal.SIGINT)
            failed.append(self.algorithm.env_steps)
            raise LearnerLostError("a learner is gone")
        return row

    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, "iterate", stop_then_lose)
        assert main(["train", *POINT, *BRIEF, f"--output_dir={folder}"]) == 0
    assert len(failed) == 1, "it trained on"
    assert f"continue with: pld-ray train --resume={folder}" in capsys.readouterr().out
    assert read_status(folder).state == "interrupted"


@pytest.mark.chaos
def test_a_learner_that_is_lost_at_the_end_is_no_failure_of_the_run(finished, monkeypatch):
    folder, failed = finished.parent / "loss_at_the_end", []
    finish = training_loop.TrainingLoop.finish

    def lose_once(self, started):
        if not failed:
            failed.append(self.save("final"))
            raise LearnerLostError("a learner is gone")
        return finish(self, started)

    monkeypatch.setattr(training_loop.TrainingLoop, "finish", lose_once)
    assert main(["train", *POINT, *BRIEF, f"--output_dir={folder}"]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] > 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validated = [row["env_steps"] for row in rows if "eval/residual_success" in row]
    assert len(validated) == len(set(validated)) > 0


def test_cal_ql_shows_how_far_it_is_and_stops_between_its_shares(
    demonstrations, tmp_path, monkeypatch, capsys
):
    """Without a step of the environment it is one iteration, of many minutes with wide networks."""
    folder = tmp_path / "calql"
    record = training_loop.TrainingLoop.record

    def record_then_stop(self, row, env_steps=None):
        record(self, row, env_steps)
        if "calql/steps" in row:
            os.kill(os.getpid(), signal.SIGINT)

    calql = [demonstrations, "--algorithm.calql_steps=450", "--algorithm.calql_num_actions=2"]
    calql += ["--tracking.enabled=false", "--total_steps=900"]
    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, "record", record_then_stop)
        assert main(["train", *POINT, *calql, f"--output_dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\[calql\] steps .* Cal-QL 200/450$", out, re.MULTILINE), out
    before = json.loads((folder / "checkpoints/interrupted" / PROGRESS_FILE).read_text())
    assert (before["phase"], before["calql_done"], before["updates"]) == ("calql", 200, 0)

    assert main(["train", f"--resume={folder}"]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["calql/steps"] for row in rows if "calql/steps" in row] == [200, 400, 450]
    assert json.loads((folder / "summary.json").read_text())["updates"] > 0
    capsys.readouterr()
    assert main(["pretrain", f"--resume={folder}"]) == 2
    assert f"continue it with pld-ray train --resume={folder}" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one_whole(delayed):
    from pld_ray.jobs.build import build_algorithm

    folder, _ = delayed
    run = RunDir(folder)
    config = run.load_config()
    config.tracking.enabled = False
    algorithm = build_algorithm(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        algorithm.load_checkpoint(str(folder / "checkpoints" / "final"))
        before = sorted(p.name for p in run.checkpoints.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # writes fail as on a full disk
        with pytest.raises(RunError, match=r"cannot write checkpoint .*best.*last good checkpoint"):
            run.save_checkpoint(algorithm.save_checkpoint, "best", {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(p.name for p in run.checkpoints.iterdir()) == before
        algorithm.load_checkpoint(str(folder / "checkpoints" / "best"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        algorithm.stop()


class FailsLater(PointEnv):
    """Passes the check before the run, and breaks in its first steps."""

    steps = 0

    def step(self, action):
        type(self).steps += 1
        if self.steps > 10:
            raise ConnectionError("the robot is gone")
        return super().step(action)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--runners.num_env_runners=100", "--runners.num_cpus_per_env_runner=1"],
            "the cluster is too small",
        ),
        ([f"--env.entry_point={__name__}:FailsLater"], "the robot is gone"),
    ],
    ids=["no room on the cluster", "an environment that breaks"],
)
def test_a_start_that_fails_leaves_no_folder(flags, words, tmp_path, capsys):
    point = ["--env.entry_point=envs.point:PointEnv", "--policy.type=none"]
    point += ["--algorithm.warmup_actions=random", "--algorithm.offline_episodes=0"]
    small = [flag for flag in SMALL if "=1" not in flag and not flag.startswith("--env.")]
    given = {flag.split("=")[0] for flag in flags}
    others = [flag for flag in (*small, *point) if flag.split("=")[0] not in given]
    argv = [*others, *flags, f"--output_dir={tmp_path / 'deep' / 'run'}"]
    assert main(["train", *argv]) == 2
    assert words in capsys.readouterr().err.strip().splitlines()[-1]
    store = {"deep", "mlflow.db", ".mlflow.db.lock"}  # other runs' too
    assert {p.name for p in tmp_path.rglob("*")} <= store


def test_a_foreign_folder_is_not_a_checkpoint(tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    assert main(["eval", f"--checkpoint={tmp_path / 'checkpoint'}"]) == 2
    assert "is not a pld-ray checkpoint" in capsys.readouterr().err


def test_an_unreachable_tracking_server_is_one_sentence_before_training(tmp_path, capsys):
    argv = ["train", *SMALL, f"--output_dir={tmp_path / 'run'}"]
    assert main([*argv, "--tracking.uri=http://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "http://127.0.0.1:9" in error
    assert "--tracking.enabled=false" in error
    # the folder is not taken: the same command works once the server is up
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("flags", [[], ["--dry_run"]], ids=str)
def test_a_placement_strategy_is_refused_where_there_is_no_placement_group(flags, tmp_path, capsys):
    folder = tmp_path / "run"
    status = main(["train", "--placement.strategy=SPREAD", f"--output_dir={folder}", *flags])
    assert status == 2
    assert "placement.strategy=SPREAD" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("flags", [[], ["--dry_run"]], ids=str)
def test_an_offline_cache_that_holds_something_else_is_refused_and_kept(flags, tmp_path, capsys):
    mine = tmp_path / "thesis" / "chapter.tex"
    mine.parent.mkdir()
    mine.write_text("ten years of work")
    argv = ["train", *SMALL, f"--offline_cache={mine.parent}", f"--output_dir={tmp_path / 'run'}"]
    assert main([*argv, *flags]) == 2
    error = capsys.readouterr().err
    assert str(mine.parent) in error
    assert "--offline_cache" in error
    assert mine.read_text() == "ten years of work"
    assert not (tmp_path / "run").exists()


def test_another_run_s_offline_cache_is_refused_before_anything_is_played(tmp_path, capsys):
    """So that its folder is free for the command that is put right."""
    cache, folder = tmp_path / "cache", tmp_path / "run"
    cache.mkdir()
    (cache / "collection.json").write_text(json.dumps({"identity": {"num_env_runners": 2}}))
    argv = ["train", *POINT, *BRIEF, f"--offline_cache={cache}", f"--output_dir={folder}"]
    assert main(argv) == 2
    assert f"the offline cache {cache} was collected with" in capsys.readouterr().err
    assert not folder.exists()


def test_pretrain_leaves_a_critic_that_train_takes_over(
    demonstrations, tmp_path, capsys, monkeypatch
):
    """Stopped once between its shares, and continued."""
    folder = tmp_path / "a critic"
    append = Journal.append

    def append_then_stop(self, row):
        if "calql/steps" in row:
            os.kill(os.getpid(), signal.SIGINT)
        return append(self, row)

    small = [*POINT, demonstrations, "--algorithm.calql_num_actions=2"]
    small.append("--tracking.enabled=false")
    with_steps = [*small, "--algorithm.calql_steps=220"]
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append_then_stop)
        assert main(["pretrain", *with_steps, f"--output_dir={folder}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\[collect\] steps [\d,]+ \(", out, re.MULTILINE), out
    assert f"after 200 Cal-QL steps\ncontinue with: pld-ray pretrain --resume='{folder}'" in out
    assert read_status(folder).state == INTERRUPTED
    assert main(["pretrain", f"--resume={folder}", "--total_steps=900"]) == 0
    assert "220 Cal-QL steps on" in capsys.readouterr().out
    assert RunDir(folder).load_config().total_steps == 900  # for pld-ray train --resume
    assert main(["pretrain", f"--resume={folder}"]) == 2
    assert "finished with Cal-QL: use its critic with pld-ray train --pretrained_critic=" in (
        capsys.readouterr().err
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["offline_transitions"] > 50
    assert summary["gap"] == pytest.approx(summary["q_policy"] - summary["q_data"], abs=1e-6)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["calql/steps"] for row in rows if "calql/steps" in row] == [200, 220]
    heir = tmp_path / "heir"
    argv = [*small, f"--pretrained_critic={summary['checkpoint']}", "--total_steps=700"]
    assert main(["train", *argv, f"--output_dir={heir}"]) == 0
    assert json.loads((heir / "summary.json").read_text())["updates"] > 0
    begun = RunDir(heir).load_config()
    begun.algorithm.critic_layer_norm = False
    check_environment(begun, resumes=True)  # it has its critic
    for name, value in (("critic_layer_norm", "false"), ("reward_bias", "-1.0")):
        other = [*argv, f"--algorithm.{name}={value}", f"--output_dir={tmp_path}/other"]
        assert main(["train", *other, "--algorithm.value_range=[-200,1]"]) == 2
        assert f"it was trained with algorithm.{name}=" in capsys.readouterr().err
    assert main(["pretrain", *small, f"--output_dir={tmp_path / 'none'}"]) == 2
    assert "calql_steps=0 has nothing to do" in capsys.readouterr().err
    assert main(["train", *small, "--pretrained_critic=nowhere", f"--output_dir={tmp_path}/x"]) == 2
    assert "pretrained_critic=nowhere: no such folder" in capsys.readouterr().err


def test_a_dry_run_says_what_the_replay_takes_and_refuses_what_cannot_fit(capsys):
    assert main(["train", *SMALL, "--dry_run"]) == 0
    # 54 float32 values a row (state 8 + 24, two actions of 7, eight others), and two int64
    online = 250_000 * (54 * 4 + 16) / 1e6
    assert f"{online:,.0f} MB online" in capsys.readouterr().out
    assert main(["train", *SMALL, "--dry_run", "--algorithm.online_capacity=1000000000"]) == 2
    message = capsys.readouterr().err
    assert "lower algorithm.online_capacity (1,000,000,000 rows" in message
