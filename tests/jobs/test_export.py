"""Which folder `pld-ray export` makes of which run, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil

import huggingface_hub
import pytest
from huggingface_hub import ModelCard

from pld_ray.cli import main
from pld_ray.config import ConfigError, PolicyConfig, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.files.manifest import CheckpointError, write_manifest
from pld_ray.jobs.export import export, write_base_and_residual
from pld_ray.plugin.policy_folder import BASE_POLICY, write_base_policy
from pld_ray.policies import EMBEDDED_ACT
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.runs.run_dir import RunDir


@pytest.fixture
def finetuned(tmp_path):
    """A fine-tuning run with one checkpoint, which played its policy."""
    return finished_run(tmp_path / "finetune", "--evaluation.validation_states=1")


def finished_run(folder, *flags):
    run = RunDir(folder)
    run.create(load_config(FinetuneConfig, list(flags)))
    checkpoint = run.checkpoints / "final"
    shutil.copytree(EMBEDDED_ACT, checkpoint / "policy")
    write_manifest(checkpoint)
    return run


def test_a_fine_tuned_policy_is_its_checkpoint_s(finetuned, tmp_path, capsys):
    assert main(["export", str(finetuned.path), f"--to={tmp_path / 'out'}"]) == 0
    assert "--env.type=pld_ray --env.task=pick_up_the_can" in capsys.readouterr().out
    written = open_checkpoint(tmp_path / "out")
    assert written.fingerprint() == open_checkpoint(None).fingerprint()
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name == "lerobot"
    assert card.data.tags == ["act", "lerobot", "pld-ray", "robotics"]
    assert "| `observation.state` | STATE | (8,) |" in card.text
    assert "lerobot-eval --policy.path=DIR --env.type=pld_ray --env.task=pick_up" in card.text


def test_a_policy_that_was_not_played_names_no_environment(tmp_path, capsys):
    """Such as a real robot's, learnt from its datasets."""
    run, out = finished_run(tmp_path / "run"), tmp_path / "out"
    assert main(["export", str(run.path), f"--to={out}"]) == 0
    assert "lerobot-eval" not in capsys.readouterr().out
    card = (out / "README.md").read_text()
    assert "--env" not in card
    assert "## Use" not in card
    assert "A LeRobot policy of type `act`." in card


def test_the_tasks_that_a_fine_tuning_played_are_named(tmp_path):
    tasks = "lift_the_can,pick_up_the_can_and_place_it_in_the_bin"
    flags = ["--evaluation.validation_states=1", "--env.episode_length=99"]
    run = finished_run(tmp_path / "run", f"--evaluation.tasks=[{tasks}]", *flags)
    export(run.path, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert f"--env.type=pld_ray --env.task={tasks} --env.episode_length=99\n" in card


def test_a_distillation_s_folder_gives_its_policy(finetuned, tmp_path):
    whole = tmp_path / "distilled"
    shutil.copytree(EMBEDDED_ACT, whole / "policy")
    about = {
        "base_policy": {"path": "/home/somebody/act", "fingerprint": "b" * 64},
        "datasets": [{"path": "/home/somebody/lift_the_can", "identity": "d" * 64}],
        "distilled_from": [
            {"path": "/home/somebody/lift", "checkpoint": "best", "checksum": "c" * 64}
        ],
        "updates": 4000,
        "seed": 3,
    }
    (whole / "policy/PROVENANCE.json").write_text(json.dumps(about))
    (whole / "table.md").write_text("| task | base | distilled |\n")
    assert export(whole, tmp_path / "out") == whole
    card = (tmp_path / "out/README.md").read_text()
    assert f"- dataset lift_the_can, `{'d' * 64}`" in card
    assert f"- residual lift, checkpoint best, checksum `{'c' * 64}`" in card
    assert "| task | base | distilled |" in card
    assert "somebody" not in card
    assert open_checkpoint(tmp_path / "out").fingerprint() == open_checkpoint(None).fingerprint()


def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    finetuned, tmp_path, monkeypatch
):
    run, out = finetuned.path, tmp_path / "out"
    with pytest.raises(ConfigError, match=r"holds no run: config.yaml is missing"):
        export(tmp_path, out)
    with pytest.raises(ConfigError, match=r"--checkpoint=best: .* holds final"):
        export(run, out, "best")
    with pytest.raises(ConfigError, match="holds something already"):
        export(run, run)
    with pytest.raises(ConfigError, match="--push_to=mine: give the repository as USER/NAME"):
        export(run, out, push_to="mine")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(
        ConfigError, match=r"needs a login .*: run `hf auth login`, or set HF_TOKEN"
    ):
        export(run, out, push_to="user/name")
    (finetuned.checkpoints / "final/policy/model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged"):
        export(run, out)
    assert not out.exists()


@pytest.mark.parametrize("encoder", [[], ["--algorithm.vision_encoder_name=policy"]], ids=str)
def test_a_base_policy_that_is_gone_is_one_sentence_before_anything_is_read(tmp_path, encoder):
    gone = tmp_path / "gone"
    config = load_config(TrainConfig, [f"--policy.path={gone}", *encoder])
    with pytest.raises(ConfigError, match=rf"'{gone}' is not a directory: put it back, or write"):
        write_base_and_residual(tmp_path, config, tmp_path / "out")


def test_an_upload_that_fails_keeps_the_folder(finetuned, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"out is written, but --push_to=user/name failed \(.*\)"):
        export(finetuned.path, tmp_path / "out", push_to="user/name")
    assert open_checkpoint(tmp_path / "out").policy_type == "act"


def test_others_may_read_what_was_made_of_files_that_they_may_not(finetuned, tmp_path):
    """As safetensors leaves them, LeRobot's and those of our older releases."""
    weights = finetuned.path / "checkpoints/final/policy/model.safetensors"
    weights.chmod(0o600)
    source = tmp_path / "act"
    shutil.copytree(EMBEDDED_ACT, source)
    (source / "model.safetensors").chmod(0o600)
    before = os.umask(0o022)
    try:
        export(finetuned.path, tmp_path / "out")
        write_base_policy(PolicyConfig(path=str(source)), tmp_path / "base")
    finally:
        os.umask(before)
    made = [tmp_path / "out", tmp_path / "base" / BASE_POLICY]
    assert {(f / "model.safetensors").stat().st_mode & 0o777 for f in made} == {0o644}
