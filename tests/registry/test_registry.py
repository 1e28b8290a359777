"""A tiny trained run in the model registry, and back as something that acts."""

from __future__ import annotations

import pathlib
import shutil
from dataclasses import dataclass

import mlflow
import numpy as np
import pytest
import yaml
from mlflow.tracking import MlflowClient
from tiny_run import SMALL, STATES, evaluated_actions

import envs
from experiments.act import play
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs.build import build_algorithm
from pld_ray.jobs.open_tracker import open_tracker
from pld_ray.jobs.result_metrics import flatten_result
from pld_ray.jobs.training_loop import learner_metrics
from pld_ray.registry import load_policy, register_policy
from pld_ray.runs.run_dir import RunDir
from pld_ray.tracking.mlflow_record import sqlite_uri, write_record
from pld_ray.tracking.mlflow_store import MissingRunError


@dataclass
class Trained:
    """A run that was logged to the server, and how its evaluation played."""

    folder: pathlib.Path
    actions: dict[int, np.ndarray]
    """Init state -> the actions of its episode."""
    rows: list[dict]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, mlflow_server, ray_cluster):
    run = RunDir(tmp_path_factory.mktemp("runs") / "run")
    where = [f"--tracking.uri={mlflow_server.uri}", f"--output_dir={run.path}"]
    config = load_config(TrainConfig, [*SMALL, *where])
    run.create(config)
    tracker = open_tracker(config, run, preset="tabletop")
    algorithm = build_algorithm(config)
    while algorithm.updates < 40:
        result = algorithm.train()
        row = flatten_result(result) | learner_metrics(result) | {"updates": algorithm.updates}
        tracker.log_metrics(row, algorithm.env_steps)
    for name in ("best", "final"):
        run.save_checkpoint(algorithm.save_checkpoint, name, {})
    tracker.log_checkpoint(run.checkpoints / "best")
    tracker.finish()
    rows = algorithm.evaluate_residual(list(STATES))
    actions = evaluated_actions(algorithm)
    algorithm.stop()
    return Trained(run.path, actions, rows)


def test_a_registered_policy_plays_the_evaluations_episodes_bit_for_bit(trained, mlflow_server):
    registered = register_policy(trained.folder, "can-lifter")
    assert (registered.version, registered.uri) == ("1", "models:/can-lifter@best")
    policy = load_policy(registered.uri, mlflow_server.uri)
    assert set(policy.inputs) == {"observation.state", "observation.environment_state"}
    env = envs.LiberoEnv(task="lift_the_can", episode_length=60)
    for state, row in zip(STATES, trained.rows, strict=True):
        actions, success = play(policy, env, state)
        np.testing.assert_array_equal(actions, trained.actions[state])
        assert (success, len(actions)) == (row.success, row.length)
        assert len(actions) > 8  # the base policy plays chunks of 4
    env.close()


def test_a_new_version_moves_the_alias_and_leaves_the_old_one(trained, mlflow_server, tmp_path):
    assert register_policy(trained.folder, "twice").checkpoint == "best"
    assert register_policy(trained.folder, "other", checkpoint="final").checkpoint == "final"
    unvalidated = shutil.copytree(trained.folder, tmp_path / "unvalidated")
    shutil.rmtree(unvalidated / "checkpoints/best")
    second = register_policy(unvalidated, "twice")
    assert (second.version, second.checkpoint) == ("2", "final")
    client = MlflowClient(mlflow_server.uri, mlflow_server.uri)
    assert str(client.get_model_version_by_alias("twice", "best").version) == "2"
    first = client.get_model_version("twice", "1")
    assert first.tags["checkpoint"] == "best"
    assert first.tags["task"] == "lift_the_can"


def test_a_sqlite_store_and_mlflows_own_loader_do_as_well(trained, store, tmp_path, monkeypatch):
    uri = sqlite_uri(store)
    client = MlflowClient(uri, uri)
    experiment = client.create_experiment("local", str(tmp_path / "artifacts"))
    run_id = client.create_run(experiment).info.run_id
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    write_record(folder, uri, run_id)
    register_policy(folder, "local")
    files = {p.name for p in (tmp_path / "artifacts").rglob("*") if p.is_file()}
    assert {"config.json", "config.yaml", "policy_model.py"} <= files
    assert {"model.safetensors", "policy_preprocessor.json"} <= files  # the base policy's
    assert not [name for name in files if pathlib.Path(name).suffix in (".pkl", ".pickle", ".pt")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    theirs, ours = (
        mlflow.pyfunc.load_model("models:/local@best"),
        load_policy("models:/local/1", uri),
    )
    generator = np.random.default_rng(0)
    for starts in ([], [False] * 3, [False] * 3, [True, False, True], [False] * 3):
        batch = {
            key: generator.normal(size=(3, *shape[1:])).astype(np.float32)
            for key, shape in ours.inputs.items()
        }
        expected = ours.predict(batch, starts or None)
        acted = theirs.predict(batch, params={"episode_start": starts})
        np.testing.assert_array_equal(acted, expected)


def test_what_cannot_be_registered_or_loaded_is_one_sentence(trained, mlflow_server, tmp_path):
    folder = trained.folder
    with pytest.raises(ConfigError, match=r"--checkpoint=none: .*checkpoints holds .*final"):
        register_policy(folder, "x", checkpoint="none")
    with pytest.raises(ConfigError, match="nowhere holds no run"):
        register_policy(tmp_path / "nowhere", "x")
    with pytest.raises(ConfigError, match="'a/b' is no name for a registered model"):
        register_policy(folder, "a/b")
    typo = f"sqlite:///{tmp_path}/typo.db"
    for refused in (
        lambda: register_policy(folder, "x", tracking_uri=typo),
        lambda: load_policy("models:/no-such@best", typo),
    ):
        missing = r"typo\.db, the MLflow store, is missing: .*tracking_uri=sqlite:///"
        with pytest.raises(ConfigError, match=missing):
            refused()
    moved = shutil.copytree(folder, tmp_path / "moved")
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["policy"]["path"] = str(tmp_path / "gone")
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match="/gone' is not a directory: put it back, or write"):
        register_policy(moved, "x")
    assert not list(tmp_path.glob("typo.db*"))
    with pytest.raises(ConfigError, match=r"models:/no-such@best cannot be loaded: .*not found"):
        load_policy("models:/no-such@best", mlflow_server.uri)
    register_policy(folder, "there")
    for uri in ("models:/there@champion", "models:/there/7"):
        known = r"not found at .*, which has of there the versions 1 and the aliases best"
        with pytest.raises(ConfigError, match=known):
            load_policy(uri, mlflow_server.uri)
    unknown = shutil.copytree(folder, tmp_path / "unknown")
    write_record(unknown, mlflow_server.uri, "0" * 32)
    with pytest.raises(MissingRunError, match=r"run 0{32}, of .* is missing at .*--tracking_uri="):
        register_policy(unknown, "x")
    away = r"cannot be used .*: try again .* or give its new place with --tracking_uri="
    with pytest.raises(ConfigError, match=away):
        register_policy(folder, "x", tracking_uri="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="is no model: give models:/NAME@ALIAS"):
        load_policy("no-such", mlflow_server.uri)
    with pytest.raises(ConfigError, match="cannot be used"):
        load_policy("models:/no-such@best", "http://127.0.0.1:9")


def test_a_run_reads_well_in_mlflow(trained, mlflow_server):
    client = MlflowClient(mlflow_server.uri, mlflow_server.uri)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("pld-ray").experiment_id], "tags.task = 'lift_the_can'"
    )
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    assert tags["pld_ray.kind"] == "train"
    assert (tags["suite"], tags["seed"], tags["preset"]) == ("pld_tabletop", "3", "tabletop")
    assert len(tags["base_policy"]) == 12
    assert tags["cluster"] == "1 node: 6 CPU"
    assert "**lift the can** (pld_tabletop), seed 3" in tags["mlflow.note.content"]
    assert params["algorithm.residual_scale"] == "0.5"
    assert params["env.task"] == "lift_the_can"
    assert {"learner/critic_loss", "updates", "time/sample_s"} <= set(metrics)
    found = client.list_artifacts(run.info.run_id, "checkpoints/best")
    assert "checkpoints/best/learner.safetensors" in [artifact.path for artifact in found]
