"""A sweep goes on where its folder and its MLflow store have been moved to."""

from __future__ import annotations

import json

import pytest
import yaml
from mlflow import MlflowClient

from pld_ray.cli import main
from pld_ray.sweep.config import load_sweep
from pld_ray.sweep.folder import load_folder
from pld_ray.tracking.mlflow_record import read_record

pytestmark = pytest.mark.usefixtures("ray_cluster")

TRIAL = {
    "env.entry_point": "envs.point:PointEnv",
    "env.kwargs": {"episode_length": 20},
    "env.task": "reach_the_goal",
    "policy.type": "none",
    "algorithm.offline_episodes": 0,
    "algorithm.warmup_actions": "random",
    "algorithm.hidden_dims": [16],
    "runners.num_env_runners": 0,
    "evaluation.interval_steps": 0,
    "evaluation.held_states": 2,
    "evaluation.validation_states": 2,
    "total_steps": 300,
}


def test_a_sweep_whose_store_has_moved_is_told_where_it_is(tmp_path, capsys, monkeypatch):
    file, before, now = tmp_path / "one.yaml", tmp_path / "before", tmp_path / "now"
    space = {"algorithm.residual_scale": {"grid": [0.5]}}
    file.write_text(yaml.safe_dump({"set": TRIAL, "space": space, "seeds": [0]}))
    before.mkdir()
    monkeypatch.chdir(tmp_path)
    typed = ["--output_dir=before/sweep", "--tracking.uri=sqlite:///before/mlflow.db"]
    assert main(["sweep", str(file), *typed]) == 0
    monkeypatch.chdir(before)
    assert main(["sweep", f"--resume={before / 'sweep'}"]) == 0
    before.rename(now)
    monkeypatch.chdir(now)
    folder = now / "sweep"
    assert main(["sweep", f"--resume={folder}"]) == 2
    assert "is missing: give its new place with --tracking.uri=sqlite" in capsys.readouterr().err
    assert main(["sweep", f"--resume={folder}", "--seeds=[1]"]) == 2
    assert "no other flags than --ray_address, --tracking.uri, --trac" in capsys.readouterr().err
    uri = f"sqlite:///{now / 'mlflow.db'}"
    assert load_folder(folder).base.placement.check
    anew = [f"--tracking.uri={uri}", "--placement.check=false", "--placement.wait_s=5"]
    assert main(["sweep", f"--resume={folder}", *anew]) == 0
    placement = load_folder(folder).base.placement
    assert (placement.check, placement.wait_s) == (False, 5.0)
    record = read_record(folder)
    assert record["tracking_uri"] == uri
    assert MlflowClient(uri).get_run(record["run_id"]).info.status == "FINISHED"
    assert load_sweep([str(folder / "sweep.yaml")]).config.tracking.uri == uri
    assert main(["sweep", f"--resume={folder}"]) == 0
    assert json.loads((folder / "summary.json").read_text())["num_finished"] == 1
