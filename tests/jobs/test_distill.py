"""`pld-ray distill`: its stages on what is there already, and what it refuses."""

from __future__ import annotations

import json
import pathlib

import pytest
from safetensors.torch import load_file
from sharded_data import write_dataset

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.distill import DistillConfig
from pld_ray.config.file import load_config
from pld_ray.evaluation.eval_info import write_eval_info
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.files.manifest import write_manifest
from pld_ray.jobs.distill import distill, learn
from pld_ray.jobs.distill_table import Row, cell_text, write_results
from pld_ray.policies import EMBEDDED_ACT, load_base_policy
from pld_ray.runs.run_dir import RunDir

TASK, OTHER = "lift_the_can", "pick_up_the_can_and_place_it_in_the_bin"
SMALL = [
    *("--algorithm.batch_size=8", "--total_steps=5", "--evaluation.held_states=1"),
    *(f"--evaluation.tasks=[{TASK},{OTHER}]", f"--collected.base_tasks=[{OTHER}]"),
    "--tracking.enabled=false",
]


@pytest.fixture
def run(tmp_path):
    """A residual run that is over, as far as its folder tells."""
    config = load_config(TrainConfig, [f"--env.task={TASK}", f"--output_dir={tmp_path / 'run'}"])
    run = RunDir(tmp_path / "run")
    run.create(config)
    best = run.checkpoints / "best"
    best.mkdir()
    (best / "residual_sac.json").write_text(json.dumps({"env_steps": 100, "has_manifest": True}))
    write_manifest(best)
    episodes = [EpisodeResult(True, 1.0, 1.0, 30, init_state_id=0)]
    base = [EpisodeResult(False, 0.0, 0.0, 150, init_state_id=0)]
    extra = {"checkpoint": str(best)}
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
