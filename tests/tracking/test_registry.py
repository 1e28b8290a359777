"""A tiny trained run in the model registry, and back as something that acts."""

from __future__ import annotations

import pathlib

import mlflow
import numpy as np
import pytest
import ray
import torch
from mlflow.tracking import MlflowClient
from ray.rllib.core.columns import Columns

from pld_ray.build import build_algorithm
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config_file import load_config
from pld_ray.metrics import flatten_result
from pld_ray.open_tracker import open_tracker
from pld_ray.registry import load_policy, register_policy
from pld_ray.run_dir import RunDir
from pld_ray.tracking.mlflow_record import sqlite_uri

SMALL = [
    "--env.task=lift_the_can",
    "--env.episode_length=60",
    "--algorithm.offline_episodes=1",
    "--algorithm.warmup_steps=60",
    "--algorithm.actor_delay_updates=0",
    "--algorithm.batch_size=16",
    "--algorithm.hidden_dims=[16,16]",
    "--algorithm.residual_scale=0.5",
    "--algorithm.init_final=0.05",
    "--runners.num_env_runners=0",
    "--runners.sample_steps=60",
    "--seed=3",
]
BATCH = 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory, mlflow_server):
    """A run that was logged to the server, observations, and what its module does with them."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    run = RunDir(tmp_path_factory.mktemp("runs") / "run")
    where = [f"--tracking.uri={mlflow_server.uri}", f"--output_dir={run.path}"]
    config = load_config(TrainConfig, [*SMALL, *where])
    run.create(config)
    tracker = open_tracker(config, run, preset="tabletop")
    algorithm = build_algorithm(config)
    while algorithm.updates < 40:
        row = flatten_result(algorithm.train()) | {"updates": algorithm.updates}
        tracker.log_metrics(row, algorithm.env_steps)
    for name in ("best", "final"):
        run.save_checkpoint(algorithm, name, {})
    tracker.log_checkpoint(run.checkpoints / "best")
    tracker.finish()
    module = algorithm.env_runner.module
    generator = np.random.default_rng(0)
    observations = {
        key: generator.normal(size=(BATCH, *space.shape)).astype(space.dtype)
        for key, space in module.observation_space.spaces.items()
    }
    observations["base_action"] = generator.uniform(-1, 1, (BATCH, 7)).astype(np.float32)
    batch = {key: torch.as_tensor(value) for key, value in observations.items()}
    actions = module.forward_inference({Columns.OBS: batch})[Columns.ACTIONS].numpy()
    algorithm.stop()
    ray.shutdown()
    return run.path, observations, actions


def test_a_registered_policy_acts_like_the_run_bit_for_bit(trained, mlflow_server):
    folder, observations, actions = trained
    registered = register_policy(folder, "can-lifter")
    assert (registered.version, registered.uri) == ("1", "models:/can-lifter@best")
    policy = load_policy(registered.uri, mlflow_server.uri)
    acted = policy.predict(observations)
    assert acted.dtype == np.float32
    np.testing.assert_array_equal(acted, actions)
    assert not np.array_equal(acted, np.clip(observations["base_action"], -1, 1))
    assert np.abs(acted).max() <= 1
    assert policy.inputs["base_action"] == (-1, 7)

    again = register_policy(folder, "can-lifter", checkpoint="final")
    assert again.version == "2"
    client = MlflowClient(mlflow_server.uri, mlflow_server.uri)
    assert str(client.get_model_version_by_alias("can-lifter", "best").version) == "2"
    first = client.get_model_version("can-lifter", "1")
    assert first.tags["checkpoint"] == "best"
    assert first.tags["task"] == "lift_the_can"
    np.testing.assert_array_equal(
        load_policy("models:/can-lifter/1", mlflow_server.uri).predict(observations), actions
    )


def test_a_sqlite_store_and_mlflows_own_loader_do_as_well(trained, store, tmp_path, monkeypatch):
    folder, observations, actions = trained
    uri = sqlite_uri(store)
    client = MlflowClient(uri, uri)
    experiment = client.create_experiment("local", str(tmp_path / "artifacts"))
    run_id = client.create_run(experiment).info.run_id
    register_policy(folder, "local", tracking_uri=uri, run_id=run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    model = mlflow.pyfunc.load_model("models:/local@best")
    np.testing.assert_array_equal(model.predict(observations), actions)
    files = {p.name for p in (tmp_path / "artifacts").rglob("*") if p.is_file()}
    assert {"policy.safetensors", "policy.json", "config.yaml", "policy_model.py"} <= files
    assert not [name for name in files if pathlib.Path(name).suffix in (".pkl", ".pickle", ".pt")]


def test_what_cannot_be_registered_or_loaded_is_one_sentence(trained, mlflow_server, tmp_path):
    folder, _, _ = trained
    with pytest.raises(ConfigError, match=r"checkpoints/none is not a pld-ray checkpoint"):
        register_policy(folder, "x", checkpoint="none")
    with pytest.raises(ConfigError, match="'a/b' is no name for a registered model"):
        register_policy(folder, "a/b")
    with pytest.raises(ConfigError, match=r"models:/no-such@best cannot be loaded: .*not found"):
        load_policy("models:/no-such@best", mlflow_server.uri)
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
    assert tags["cluster"] == "1 node: 2 CPU"
    assert "**lift the can** (pld_tabletop), seed 3" in tags["mlflow.note.content"]
    assert params["algorithm.residual_scale"] == "0.5"
    assert params["env.task"] == "lift_the_can"
    assert {"learner/critic_loss", "updates", "time/sample_s", "system/cpu_percent"} <= set(metrics)
    found = client.list_artifacts(run.info.run_id, "checkpoints/best")
    assert "checkpoints/best/learner.safetensors" in [artifact.path for artifact in found]
