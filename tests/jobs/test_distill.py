"""`pld-ray distill`: its stages on what is there already, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal

import pytest
from safetensors.torch import load_file
from sharded_data import write_dataset

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.config.file import load_config
from pld_ray.data.dataset import Dataset
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.evaluation import policy_player
from pld_ray.evaluation.eval_info import of_checkpoint, read_eval_info, write_eval_info
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.jobs import distill_evaluation
from pld_ray.jobs.distill import (
    Part,
    distill,
    learn,
    learning_from,
    open_teachers,
    planned,
    record,
)
from pld_ray.jobs.distill_evaluation import evaluate_all, outcomes_of_run, played_with
from pld_ray.jobs.distill_table import Row, cell_text, write_results
from pld_ray.jobs.finetune import finetune
from pld_ray.policies import EMBEDDED_ACT, load_base_policy
from pld_ray.runs.layout import POLICY_FOLDER
from pld_ray.runs.run_dir import RunDir

TASK, OTHER = "lift_the_can", "pick_up_the_can_and_place_it_in_the_bin"
SMALL = [
    *("--algorithm.batch_size=8", "--total_steps=5", "--evaluation.held_states=1"),
    *(f"--evaluation.tasks=[{TASK},{OTHER}]", f"--collected.base_tasks=[{OTHER}]"),
    "--tracking.enabled=false",
]


ONE_TASK = [
    *(f"--evaluation.tasks=[{TASK}]", "--collected.base_successes=0", "--evaluation.held_states=1"),
    "--tracking.enabled=false",
]
FIVE = "pld_tabletop_act_five_demonstrations"


@pytest.fixture
def run(tmp_path):
    """A residual run that is over, as far as its folder tells."""
    return finished_run(tmp_path / "run")


def finished_run(folder, *flags, task=TASK, env_steps=100):
    config = load_config(TrainConfig, [f"--env.task={task}", f"--output_dir={folder}", *flags])
    run = RunDir(folder)
    run.create(config)
    best = run.checkpoints / "best"
    best.mkdir()
    progress = {"env_steps": env_steps, "has_manifest": True}
    (best / "residual_sac.json").write_text(json.dumps(progress))
    write_manifest(best)
    episodes = [EpisodeResult(True, 1.0, 1.0, 30, init_state_id=0)]
    base = [EpisodeResult(False, 0.0, 0.0, 150, init_state_id=0)]
    extra = of_checkpoint(best)
    write_eval_info(run.path / "eval_info.json", episodes, base=base, extra=extra)
    return run


def test_each_stage_is_kept_and_recognised(run, tmp_path):
    out = tmp_path / "out"
    write_dataset(out / "collected/residual" / TASK, (12, 9, 20))
    write_dataset(out / "collected/base" / OTHER, (12, 9))
    config = load_config(DistillConfig, [*SMALL, f"--output_dir={out}"])
    said: list[str] = []
    summary = distill(config, [run.path], said.append)
    assert [line.split()[0] for line in said] == ["fine-tuning:"] + ["evaluating"] * 3
    assert summary["residual_success"] == 1.0
    assert summary["tasks"][TASK]["base"] == 0.0  # as the run measured it
    assert summary["tasks"][OTHER]["residual"] is None
    assert {"table.md", "success.png", "summary.json"} <= {path.name for path in out.iterdir()}
    about = json.loads((out / "policy/PROVENANCE.json").read_text())
    assert about["base_policy"]["fingerprint"] == load_base_policy().fingerprint
    assert [ancestor["path"] for ancestor in about["distilled_from"]] == [str(run.path)]
    assert len(about["datasets"]) == 2
    assert load_base_policy(out / "policy").fingerprint != load_base_policy().fingerprint

    def nothing(text: str) -> None:
        raise AssertionError(text)

    assert distill(config, [run.path], nothing) == summary


def test_the_control_learns_from_the_base_policy_alone(run, tmp_path):
    out = tmp_path / "out"
    write_dataset(out / "collected/control" / TASK, (12, 9, 20))
    write_dataset(out / "collected/base" / OTHER, (12, 9))
    options = [*SMALL, "--collected.teacher=base", f"--output_dir={out}"]
    summary = distill(load_config(DistillConfig, options), [run.path], str)
    assert summary["residual_success"] == 1.0  # what it is compared with
    about = json.loads((out / "policy/PROVENANCE.json").read_text())
    assert about["distilled_from"] == []
    assert [pathlib.Path(d["path"]).parent.name for d in about["datasets"]] == ["control", "base"]


@pytest.mark.learning  # a minute, of which test_finetune_cluster.py proves nearly all
def test_learners_learn_what_one_process_does(tmp_path):
    write_dataset(tmp_path / "data", (12, 9, 20))
    learnt = []
    ways = ["--algorithm.accumulation=2"], ["--learners.num_learners=2"]
    for number, way in enumerate(ways):
        out = tmp_path / str(number)
        config = load_config(DistillConfig, [*SMALL, *way, "--algorithm.learning_rate=3e-4"])
        folder = learn(config, [str(tmp_path / "data")], [1.0], out, str)
        learnt.append(load_file(folder / "model.safetensors"))
    one, two = learnt
    before = load_file(EMBEDDED_ACT / "model.safetensors")
    assert max(float((one[name] - before[name]).abs().max()) for name in one) > 1e-5
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-6


def test_the_fine_tuning_takes_the_learners_that_are_asked_for():
    asked = ["--learners.num_learners=2", "--placement.learner={learning: 1}", "--max_failures=1"]
    learning = load_config(DistillConfig, [*asked, "--ray_address=head:1"]).learning([], [], "x")
    assert learning.learners.num_learners == 2
    assert learning.placement.learner == {"learning": 1}
    assert (learning.max_failures, learning.ray_address) == (1, "head:1")
    with pytest.raises(ConfigError, match=r"batch_size=128: must be a multiple .*, such as 129"):
        load_config(DistillConfig, ["--learners.num_learners=3"])


def test_the_control_plays_other_placements_than_the_share_of_the_base_policy(run, tmp_path):
    asked = ["--collected.teacher=base", "--evaluation.held_states=1"]
    config = load_config(DistillConfig, [*asked, f"--output_dir={tmp_path / 'out'}"])
    teachers = open_teachers(config, [run.path], False)
    parts = planned(config, teachers, tmp_path / "out")
    control, share = (part for part in parts if part.config.env.task == TASK)
    assert control.root.parent.name == "control"
    assert control.config.seed != share.config.seed == teachers[0].config.seed
    assert 0 <= control.config.seed <= 2147483647
    assert planned(config, teachers, tmp_path / "out")[0].config.seed == control.config.seed
    about = {"seed": teachers[0].config.seed}  # as an older release played it
    EpisodeWriter(control.root, Recording("lift the can", 20, about=about))
    assert planned(config, teachers, tmp_path / "out")[0].config.seed == share.config.seed
    (residual,) = {
        part.config.seed
        for part in planned(load_config(DistillConfig, asked[1:]), teachers, tmp_path / "out")
    }
    assert residual == teachers[0].config.seed


def test_runs_that_do_not_belong_together_are_refused(run, tmp_path):
    config = load_config(DistillConfig, [*SMALL, f"--output_dir={tmp_path / 'out'}"])
    with pytest.raises(ConfigError, match="needs the folder of a residual run"):
        distill(config, [])
    with pytest.raises(ConfigError, match="two of the runs are of the same task"):
        distill(config, [run.path, run.path])
    more = load_config(DistillConfig, [*SMALL[:2], "--evaluation.held_states=200"])
    with pytest.raises(ConfigError, match="held 100 init states back"):
        distill(more, [run.path])
    large = [*SMALL, "--learners.num_learners=2", "--learners.num_gpus_per_learner=64"]
    with pytest.raises(ConfigError, match="need more GPUs than the"):
        distill(load_config(DistillConfig, large), [run.path])
    elsewhere = load_config(DistillConfig, [*SMALL[:2], "--evaluation.tasks=[nowhere]"])
    with pytest.raises(ConfigError, match="nowhere is no task of the suite: "):
        distill(elsewhere, [run.path])
    scratch = load_config(TrainConfig, ["--policy.type=none", f"--output_dir={tmp_path / 's'}"])
    RunDir(tmp_path / "s").create(scratch)
    with pytest.raises(ConfigError, match="is no residual run"):
        distill(config, [tmp_path / "s"])
    assert not (tmp_path / "out").exists()


def test_runs_that_do_not_play_alike_are_refused(tmp_path):
    config = load_config(DistillConfig, [*SMALL, f"--output_dir={tmp_path / 'out'}"])
    first = finished_run(tmp_path / "first").path
    cases = [
        ("policy.n_action_steps", "3", "3", "None"),
        ("policy.prefetch", "true", "True", "False"),
        ("policy.dtype", "bfloat16", "'bfloat16'", "None"),
        ("env.episode_length", "99", "99", "None"),
        ("env.control_mode", "absolute", "'absolute'", "'relative'"),
    ]
    for number, (name, flag, own, other) in enumerate(cases):
        second = finished_run(tmp_path / f"second_{number}", f"--{name}={flag}", task=OTHER).path
        said = f"{second} plays with {name}={own}, and {first} with {name}={other}: distil runs"
        with pytest.raises(ConfigError, match=re.escape(said)):
            open_teachers(config, [first, second], False)
    same = ["--env.fast_step=false", "--env.terminate_when_toppled=true", "--policy.replicas=2"]
    third = finished_run(tmp_path / "third", *same, task=OTHER).path
    assert len(open_teachers(config, [first, third], False)) == 2


def test_a_classifier_judges_its_own_task_alone(run, tmp_path):
    config = load_config(DistillConfig, ["--evaluation.held_states=1"])
    (teacher,) = open_teachers(config, [run.path], False)
    env = dataclasses.replace(teacher.config.env, reward_classifier="folder")
    judged = dataclasses.replace(teacher, config=dataclasses.replace(teacher.config, env=env))
    recorded = [part.config.env for part in planned(config, [judged], tmp_path)]
    assert {e.task for e in recorded if e.reward_classifier} == {TASK}
    assert len(recorded) == 6


def test_the_summary_by_hand(tmp_path):
    rows = [
        Row("a", [True, False, False, False], [True] * 4, [True, True, True, False]),
        Row("b", [True, True, False, False], None, [True, False, False, False]),
    ]
    found = write_results(tmp_path, rows, tmp_path / "policy", ["run"], 0)
    assert found["base_success"] == 0.25
    assert found["distilled_success"] == 0.75
    assert found["distilled_minus_base_points"] == 50.0
    assert found["distilled_over_residual"] == 0.75
    assert found["untrained_loss_points"] == 25.0
    assert (
        "| b | 50 % (15 to 85) | not distilled | 25 % (5 to 70) |"
        in (tmp_path / "table.md").read_text()
    )
    assert cell_text([True] * 4) == "100 % (51 to 100)"


def test_a_base_policy_that_is_gone_or_incomplete_is_refused(run, tmp_path, capsys):
    gone, empty, weightless = (tmp_path / name for name in ("gone", "empty", "weightless"))
    empty.mkdir()
    shutil.copytree(EMBEDDED_ACT, weightless)
    (weightless / "model.safetensors").unlink()
    cases = [
        (gone, "is not a directory: give a local LeRobot"),
        (empty, f"{empty}/config.json is missing: "),
        (weightless, f"{weightless}/model.safetensors is missing: "),
    ]
    out = f"--output_dir={tmp_path / 'out'}"
    for policy, said in cases:
        assert main(["distill", str(run.path), f"--policy.path={policy}", out, "--dry_run"]) == 2
        told = capsys.readouterr().err
        assert told.startswith("pld-ray: policy.path: ")
        assert said in told
        assert told.count("\n") == 1
    for number, (policy, said) in enumerate(cases):
        stored = finished_run(tmp_path / f"stored_{number}", f"--policy.path={policy}").path
        said = said if policy != gone else f"put it back, or write its new place .*{stored}/config"
        with pytest.raises(ConfigError, match=f"^{stored}: .*{said}") as refused:
            open_teachers(load_config(DistillConfig, [*ONE_TASK, out]), [stored], False)
        assert "--policy.path" not in str(refused.value)


# --- a folder that was used before ----------------------------------------------------------------


@pytest.mark.parametrize("dry", [[], ["--dry_run"]], ids=str)
@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["config.yaml", "policy", "summary.json"], "a run"),
        (["sweep.json", "trials"], "a sweep"),
        (["manifest.json", "policy"], "a checkpoint"),
        (["summary.json", "thesis.tex"], "summary.json, and nothing of a distillation"),
    ],
)
def test_the_folder_of_something_else_is_refused_and_kept(run, tmp_path, capsys, held, said, dry):
    out = tmp_path / "out"
    out.mkdir()
    for name in held:
        (out / name).write_text("{}") if "." in name else (out / name).mkdir()
    assert main(["distill", str(run.path), *ONE_TASK, f"--output_dir={out}", *dry]) == 2
    told = f"pld-ray: output_dir={out} already holds {said}: choose another --output_dir\n"
    assert capsys.readouterr().err == told
    assert sorted(path.name for path in out.iterdir()) == sorted(held)


def test_the_run_that_is_distilled_keeps_its_results(run):
    config = load_config(DistillConfig, [*ONE_TASK, f"--output_dir={run.path}"])
    with pytest.raises(ConfigError, match="run already holds a run: choose another --output_dir"):
        distill(config, [run.path], str)


@pytest.mark.parametrize(
    "left",
    [
        [],
        ["run.lock"],
        ["a.log"],
        ["run.lock", ".inputs.json-x1"],
        ["inputs.json"],
        ["notes", POLICY_FOLDER],
    ],
)
def test_a_distillation_that_was_interrupted_early_goes_on(run, tmp_path, left):
    out = tmp_path / "out"
    out.mkdir()
    for name in left:
        (out / name).mkdir() if name == POLICY_FOLDER else (out / name).write_text("")
    config = load_config(DistillConfig, [*ONE_TASK, f"--output_dir={out}"])
    assert open_teachers(config, [run.path], False)


def used_folder(out, run):
    """What the release before left of a distillation of `run`: data and policy, and no list of
    what they are made of."""
    write_dataset(out / "collected/residual" / TASK, (12, 9))
    shutil.copytree(EMBEDDED_ACT, out / "policy")
    (teacher,) = open_teachers(load_config(DistillConfig, ONE_TASK), [run.path], True)
    about = {
        "base_policy": {"fingerprint": load_base_policy().fingerprint},
        "distilled_from": [teacher.origin],
    }
    (out / "policy/PROVENANCE.json").write_text(json.dumps(about))
    return out


def test_a_folder_of_other_runs_is_refused(run, tmp_path):
    out = used_folder(tmp_path / "out", run)
    flags = [*ONE_TASK, f"--output_dir={out}"]
    config = load_config(DistillConfig, flags)
    open_teachers(config, [run.path], False)
    assert not (out / "inputs.json").exists()  # a look changes nothing
    assert distill(config, [run.path], str)["tasks"][TASK]["residual"] == 1.0
    written = (out / "inputs.json").read_text()
    provenance = (out / "policy/PROVENANCE.json").read_text()

    other = finished_run(tmp_path / "other", env_steps=200)
    second = finished_run(tmp_path / "second", task=OTHER, env_steps=300)
    five = finished_run(tmp_path / "five", f"--policy.path={FIVE}")
    cases = [
        ([other.path], [], r"run \(checkpoint best, \w{12}\), and is now asked for .*other \(ch"),
        ([run.path, second.path], [], r"fewer runs, and is now asked for .*second"),
        ([five.path], [f"--policy.path={FIVE}"], r"base policy \w{12}, and .* \(--policy.path\)"),
        ([run.path], ["--collected.teacher=base"], r"teacher='residual', and is .* for 'base'"),
        ([run.path], ["--collected.residual_successes=7"], r"successes=50, and is now asked for 7"),
    ]
    for runs, more, said in cases:
        asked = load_config(DistillConfig, [*flags, *more])
        with pytest.raises(ConfigError, match=rf"out was begun with .*{said}.*give another --out"):
            distill(asked, runs, str)
    assert (out / "inputs.json").read_text() == written
    assert (out / "policy/PROVENANCE.json").read_text() == provenance

    shutil.move(run.path, tmp_path / "moved")
    assert open_teachers(config, [tmp_path / "moved"], False)  # its checkpoint is the same


def test_a_folder_of_the_release_before_that_contradicts_is_refused(run, tmp_path):
    out = used_folder(tmp_path / "out", run)
    other = finished_run(tmp_path / "other", env_steps=200)
    config = load_config(DistillConfig, [*ONE_TASK, f"--output_dir={out}"])
    with pytest.raises(ConfigError, match=r"begun with .*run \(.*is now asked for .*other \("):
        distill(config, [other.path])
    progress = out / "collected/residual" / TASK / "collection_progress.json"
    text = progress.read_text()
    for name, value, said in (
        ("device", "scripted", "begun with intervention.device=scripted, which acts in its episod"),
        ("base_policy", {"fingerprint": "0" * 64}, "begun with the base policy 000000000000, and"),
    ):
        found = json.loads(text)
        found["recording"][name] = value
        progress.write_text(json.dumps(found))
        with pytest.raises(ConfigError, match=rf"{TASK} was {said}"):
            distill(config, [run.path])
    assert not (out / "inputs.json").exists()


def test_other_settings_of_a_fine_tuning_that_has_begun_are_refused(run, tmp_path):
    out = tmp_path / "out"
    flags = [*ONE_TASK, f"--output_dir={out}"]
    config = load_config(DistillConfig, flags)
    parts = planned(config, open_teachers(config, [run.path], False), out)
    RunDir(out / "finetune").create(learning_from(config, parts, out))
    for same in (["--max_failures=1"], ["--learners.num_learners=2"]):
        open_teachers(load_config(DistillConfig, [*flags, *same]), [run.path], False)
    for other, said in (
        (["--seed=1"], "seed=0, and is now asked for 1"),
        (["--algorithm.learning_rate=1e-4"], "algorithm.learning_rate=0.0005, and is now"),
        (["--collected.base_share=0.5"], "dataset_weights="),
    ):
        asked = load_config(DistillConfig, [*flags, *other])
        with pytest.raises(ConfigError, match=f"out/finetune was begun with {said}"):
            open_teachers(asked, [run.path], False)


def test_a_folder_that_was_moved_while_it_learnt_goes_on(tmp_path):
    out, data = tmp_path / "out", f"collected/residual/{TASK}"
    write_dataset(out / data, (12, 9))
    config = load_config(DistillConfig, [*ONE_TASK, "--total_steps=1", "--algorithm.batch_size=4"])
    RunDir(out / "finetune").create(
        config.learning([str(out / data)], [1.0], str(out / "finetune"))
    )
    moved = out.rename(tmp_path / "moved")
    policy = learn(config, [str(moved / data)], [1.0], moved, str)
    about = json.loads((policy / "PROVENANCE.json").read_text())
    assert [dataset["path"] for dataset in about["datasets"]] == [str(moved / data)]
    assert not out.exists()


def test_a_fine_tuning_goes_on_with_what_the_command_says(run, tmp_path, monkeypatch):
    """Where the base policy lies now, who learns, and where: a head node has another address."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    out = tmp_path / "out"
    flags = [*ONE_TASK, f"--output_dir={out}"]
    config = load_config(DistillConfig, flags)
    parts = planned(config, open_teachers(config, [run.path], False), out)
    begun = learning_from(config, parts, out)
    RunDir(out / "finetune").create(begun)
    policy = shutil.copytree(EMBEDDED_ACT, tmp_path / "policy")
    flags += ["--learners.num_learners=2", "--ray_address=10.0.0.9:6379", "--max_failures=9"]
    config = load_config(DistillConfig, [*flags, f"--policy.path={policy}"])
    open_teachers(config, [run.path], False)
    asked = []

    def on_cluster(learning, folder, resumes, on_samples):
        asked.append((learning, folder.path, resumes))
        return {}

    write_dataset(out / "collected/residual" / TASK, (12, 9))
    monkeypatch.setattr("pld_ray.jobs.finetune.finetune_on_cluster", on_cluster)
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
        learn(config, begun.dataset, begun.dataset_weights, out, str)
    assert asked == [(learning_from(config, parts, out), out / "finetune", True)]
    assert asked[0][0].policy.path == str(policy)


def test_a_policy_that_moved_is_gone_on_with(tmp_path):
    data, out = [str(tmp_path / "data")], tmp_path / "out"
    write_dataset(tmp_path / "data", (12, 9))
    flags = [*ONE_TASK, "--total_steps=6", "--algorithm.batch_size=4", "--max_failures=1"]
    policy = shutil.copytree(EMBEDDED_ACT, tmp_path / "policy")
    config = load_config(DistillConfig, [*flags, f"--policy.path={policy}"])
    straight = learn(config, data, [1.0], tmp_path / "straight", str)
    samples = []

    def stop_at_half(number: int) -> None:
        samples.append(number)
        if len(samples) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    learning = config.learning(data, [1.0], str(out / "finetune"))
    assert "policy" not in finetune(learning, on_samples=stop_at_half)
    moved = policy.rename(tmp_path / "moved")
    config = load_config(DistillConfig, [*flags, f"--policy.path={moved}"])
    found = learn(config, data, [1.0], out, str)
    log = (out / "finetune/train.log").read_text()
    assert "checkpoints/interrupted at 3 updates" in log
    assert log.count(" updates=0 ") == 1  # it did not begin anew
    one, other = (folder / "model.safetensors" for folder in (straight, found))
    assert one.read_bytes() == other.read_bytes()
    about = json.loads((found / "PROVENANCE.json").read_text())
    assert about["base_policy"]["path"] == str(moved)


def test_tasks_that_were_not_distilled_can_be_played_alone(run, tmp_path, capsys):
    out = used_folder(tmp_path / "out", run)
    flags = [*ONE_TASK[1:], f"--evaluation.tasks=[{OTHER}]", f"--output_dir={out}"]
    assert main(["distill", str(run.path), *flags]) == 0
    assert "tasks that were not distilled: base " in capsys.readouterr().out


# --- how the policies are asked -------------------------------------------------------------------


def test_policies_are_played_as_they_are_fine_tuned(run, tmp_path):
    """With what `--policy.*` says of the observations' names."""
    renamed = "--policy.rename_map={observation.state: observation.pose}"
    config = load_config(DistillConfig, [*ONE_TASK, renamed])
    teachers = open_teachers(config, [run.path], False)
    with pytest.raises(ValueError, match=r"rename_map leads to \['observation.pose'\]"):
        evaluate_all(config, teachers, [TASK], EMBEDDED_ACT, tmp_path, str)


@pytest.mark.parametrize(
    ("flags", "way"),
    [
        (["--policy.n_action_steps=3", "--policy.prefetch=true"], (3, True)),
        (["--policy.prefetch=true"], (4, True)),
        (["--policy.n_action_steps=3"], (3, False)),
    ],
)
def test_policies_are_played_as_the_run_plays(tmp_path, monkeypatch, flags, way):
    """What was played otherwise, and kept, is played anew."""
    run = finished_run(tmp_path / "run", *flags)
    config = load_config(DistillConfig, ONE_TASK)
    teachers = open_teachers(config, [run.path], False)
    old = {"policy": load_base_policy().fingerprint, "states": [0], "success": ["otherwise"]}
    (tmp_path / "evaluation").mkdir()
    (tmp_path / f"evaluation/base-{OTHER}.json").write_text(json.dumps(old))
    ways = []

    def play(env, states):
        ways.append((env.env.base_policy.n_action_steps, env.env.prefetch))
        return {state: EpisodeResult(True, 1.0, 1.0, 30, state) for state in states}

    monkeypatch.setattr(policy_player, "play_init_states", play)
    for _ in range(2):
        rows = evaluate_all(config, teachers, [TASK, OTHER], EMBEDDED_ACT, tmp_path, str)
        assert [(row.base, row.distilled) for row in rows] == [([False], [True]), ([True], [True])]
    assert ways == [way] * 3  # the base policy elsewhere, and the distilled one on both


def test_what_is_learnt_in_is_not_what_is_played_in(tmp_path):
    run = finished_run(tmp_path / "run", "--policy.n_action_steps=3", "--policy.rtc=false")
    flags = ["--policy.dtype=bfloat16", "--policy.rename_map={observation.state: observation.pose}"]
    config = load_config(DistillConfig, [*ONE_TASK, *flags])
    (teacher,) = open_teachers(config, [run.path], False)
    names = {"observation.state": "observation.pose"}
    assert played_with(config, teacher) == {"n_action_steps": 3, "rename_map": names}
    run = finished_run(tmp_path / "rounded", "--policy.dtype=bfloat16")
    (teacher,) = open_teachers(load_config(DistillConfig, ONE_TASK), [run.path], False)
    assert played_with(load_config(DistillConfig, ONE_TASK), teacher) == {"dtype": "bfloat16"}


def test_the_person_of_the_run_takes_no_part_in_what_is_recorded(tmp_path, ray_cluster):
    person = ["--intervention.device=scripted", "--intervention.patience_steps=1"]
    config = load_config(TrainConfig, [f"--env.task={TASK}", *person])
    record(Part(tmp_path / "data", config, 1, None, 1.0), 0, str)
    columns = Dataset(tmp_path / "data").columns(["intervened", "next.success"])
    assert columns["next.success"].sum() == 1
    assert not columns["intervened"].any()
    assert "device" not in json.loads((tmp_path / "data/meta/recording.json").read_text())


def test_what_a_classifier_judged_once_is_played_anew(run, tmp_path):
    config = load_config(DistillConfig, ONE_TASK)
    (teacher,) = open_teachers(config, [run.path], False)
    fingerprint = load_base_policy().fingerprint
    old = {"policy": fingerprint, "states": [0], "success": ["by the classifier"]}
    (tmp_path / "evaluation").mkdir()
    (tmp_path / f"evaluation/distilled-{TASK}.json").write_text(json.dumps(old))
    env = dataclasses.replace(teacher.config.env, reward_classifier="folder")
    judged = dataclasses.replace(teacher, config=dataclasses.replace(teacher.config, env=env))
    for teachers, told in (([teacher], 0), ([judged], 1), ([judged], 0)):
        said: list[str] = []
        evaluate_all(config, teachers, [TASK], EMBEDDED_ACT, tmp_path, said.append)
        assert len(said) == told


def test_more_states_than_a_residual_has_played_are_played(tmp_path, ray_cluster):
    run = finished_run(tmp_path / "run", "--runners.num_env_runners=0")
    (teacher,) = open_teachers(load_config(DistillConfig, ONE_TASK), [run.path], False)
    folder = tmp_path / "out/evaluation" / f"residual-{TASK}"
    folder.mkdir(parents=True)
    shutil.move(run.path / "eval_info.json", folder)
    said: list[str] = []
    known = outcomes_of_run(teacher, [0], tmp_path / "out", said.append)
    assert (known, said) == ({"base": [False], "residual": [True]}, [])
    with pytest.raises(CheckpointError, match="is damaged"):  # it has no weights
        outcomes_of_run(teacher, [0, 1], tmp_path / "out", said.append)
    assert said == [f"evaluating base and base + residual on {TASK}"]


@pytest.mark.parametrize("by_an_older_release", [False, True])
def test_another_best_than_the_run_has_played_is_played(
    run, tmp_path, monkeypatch, by_an_older_release
):
    def evaluate(checkpoint, number, folder, trust):
        episodes = [EpisodeResult(False, 0.0, 0.0, 150, init_state_id=0)]
        pathlib.Path(folder).mkdir(parents=True)
        write_eval_info(f"{folder}/eval_info.json", episodes, base=episodes)

    monkeypatch.setattr(distill_evaluation, "evaluate_checkpoint", evaluate)
    (teacher,) = open_teachers(load_config(DistillConfig, ONE_TASK), [run.path], False)
    said: list[str] = []
    assert outcomes_of_run(teacher, [0], tmp_path, said.append)["residual"] == [True]
    if by_an_older_release:  # which told the place alone
        info = read_eval_info(run.path / "eval_info.json")
        del info["checksum"]
        (run.path / "eval_info.json").write_text(json.dumps(info))
    else:
        (teacher.checkpoint / "learner.safetensors").write_bytes(b"of another life")
        write_manifest(teacher.checkpoint)
    assert outcomes_of_run(teacher, [0], tmp_path, said.append)["residual"] == [False]
    assert said == [f"evaluating base and base + residual on {TASK}"]


def test_more_states_than_the_run_has_played_are_played(run, tmp_path, monkeypatch):
    (teacher,) = open_teachers(load_config(DistillConfig, ONE_TASK), [run.path], False)

    def evaluate(checkpoint, number, folder, trust):
        assert (checkpoint, number) == (str(teacher.checkpoint), 2)
        episodes = [EpisodeResult(True, 1.0, 1.0, 30, init_state_id=k) for k in range(number)]
        pathlib.Path(folder).mkdir(parents=True)
        write_eval_info(f"{folder}/eval_info.json", episodes, base=episodes)

    monkeypatch.setattr(distill_evaluation, "evaluate_checkpoint", evaluate)
    said: list[str] = []
    assert outcomes_of_run(teacher, [0], tmp_path, said.append)["base"] == [False]
    for _ in range(2):
        found = outcomes_of_run(teacher, [0, 1], tmp_path, said.append)
        assert found == {"base": [True, True], "residual": [True, True]}
    assert said == [f"evaluating base and base + residual on {TASK}"]


def test_trust_reaches_what_is_played_at_the_end(tmp_path, ray_cluster, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    foreign = ["--runners.num_env_runners=0", "--placement.env_vars={PLD_RAY_TEST: x}"]
    run = finished_run(tmp_path / "run", *foreign)
    brought = RunDir(run.path.rename(tmp_path / "brought"))  # its evaluation names another path
    out = used_folder(tmp_path / "out", brought)
    config = load_config(DistillConfig, [*ONE_TASK, f"--output_dir={out}"])
    with pytest.raises(ConfigError, match="say so with --trust"):
        distill(config, [brought.path], str)
    with pytest.raises(CheckpointError, match="is damaged"):  # it has no weights
        distill(config, [brought.path], str, trust=True)
