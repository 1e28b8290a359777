"""Exported policies in LeRobot's own programs, against the evaluation of the run they are of.

The commands are those of docs/lerobot.md.
"""

from __future__ import annotations

import json
import pathlib
import re
import shlex
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import get_policy_class, make_pre_post_processors
from point_robot import StatePoint
from tiny_run import SMALL, STATES, evaluated_actions

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.cli import main
from pld_ray.config import ConfigError, PolicyConfig, ResidualSACParams, TrainConfig
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.file import load_config
from pld_ray.jobs.build import build_algorithm
from pld_ray.plugin.acting import load_residual
from pld_ray.plugin.modeling_pld import PldResidualPolicy
from pld_ray.plugin.policy_folder import write_residual
from pld_ray.policies import ChunkCache, NoBasePolicy
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.policies.spaces import describe_spaces
from pld_ray.rollout.vector_env import with_base_policy
from pld_ray.runs.run_dir import RunDir

PAGE = (pathlib.Path(__file__).parents[2] / "docs/lerobot.md").read_text()


def commands(program):
    """Those of the page's blocks, without the program's name."""
    lines = [
        line for block in re.findall(r"```\n(.*?)```", PAGE, re.S) for line in block.split("\n")
    ]
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"{program} ")]


@dataclass
class Trained:
    """A run, and how its evaluation played."""

    folder: pathlib.Path
    actions: dict[int, np.ndarray]
    """Init state -> the actions of its episode."""
    successes: list[bool]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ray_cluster):
    run = RunDir(tmp_path_factory.mktemp("runs") / "run")
    config = load_config(TrainConfig, [*SMALL, f"--output_dir={run.path}"])
    run.create(config)
    algorithm = build_algorithm(config)
    while algorithm.updates < 40:
        algorithm.train()
    run.save_checkpoint(algorithm.save_checkpoint, "best", {})
    successes = [row.success for row in algorithm.evaluate_residual(list(STATES))]
    actions = evaluated_actions(algorithm)
    algorithm.stop()
    return Trained(run.path, actions, successes)


def test_lerobot_eval_plays_base_and_residual_as_our_evaluation_does(
    trained, lerobot, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("outputs").mkdir()
    pathlib.Path("outputs/lift").symlink_to(trained.folder)
    (export,), (evaluate,) = commands("pld-ray"), commands("lerobot-eval")
    assert main(export) == 0
    lerobot(
        "lerobot.scripts.lerobot_eval",
        *evaluate,
        "--env.episode_length=60",
        "--env.render=false",
        f"--eval.n_episodes={len(STATES)}",
        f"--eval.batch_size={len(STATES)}",
        "--eval.use_async_envs=false",
        "--eval.recording=true",
        "--output_dir=eval",
    )
    info = json.loads(pathlib.Path("eval/eval_info.json").read_text())
    assert info["per_task"][0]["metrics"]["successes"] == trained.successes
    for i, state in enumerate(STATES):
        files = pathlib.Path(f"eval/recordings/pld_tabletop_0/env_{i}").rglob("data/**/*.parquet")
        (table,) = [pq.read_table(file) for file in files]
        played = np.stack(table["action"].to_pylist())
        np.testing.assert_allclose(played, trained.actions[state], rtol=0, atol=1e-5)


def test_saved_and_loaded_again_it_is_the_same_policy(trained, tmp_path):
    assert main(["export", str(trained.folder), f"--to={tmp_path / 'one'}"]) == 0
    policy = PldResidualPolicy.from_pretrained(tmp_path / "one")
    policy.save_pretrained(tmp_path / "two")
    again = PldResidualPolicy.from_pretrained(tmp_path / "two")
    assert {"README.md"} == {  # the model card
        f.name
        for f in (tmp_path / "two").rglob("*")
        if f.suffix not in ("", ".json", ".safetensors")
    }
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):  # over the end of a chunk
        batch = {
            "observation.state": torch.randn(3, 8, generator=generator),
            "observation.environment_state": torch.randn(3, 24, generator=generator),
        }
        first, second = policy.select_action(batch), again.select_action(batch)
        assert torch.equal(first, second)
    policy.reset()  # the same observation begins an episode now
    assert not torch.equal(policy.select_action(batch), second)


def residual_folder(folder):
    """An untrained residual without a base policy, and what it is."""
    env, params = StatePoint(), ResidualSACParams(hidden_dims=[16], init_final=0.5)
    spaces = with_base_policy(NoBasePolicy(7), env.observation_space, env.action_space)
    networks = ResidualNetworks.of_spaces(spaces, env.action_space, params, seed=0)
    environment = {
        **describe_spaces(env.observation_space, env.action_space),
        "task": "go",
    }
    settings = {"params": vars(params)}
    state = networks.acting_state()
    write_residual(folder, state, settings, environment, PolicyConfig(type="none"))
    return load_residual(folder)


def test_a_policy_of_an_older_release_acts_as_it_did(tmp_path):
    acting = residual_folder(tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    params = stored["networks"]["params"]
    del params["conservative_weight"]  # came later
    params |= {"success_share": 0.25, "learning_rate_shares": {"actor": 0.1}}  # are gone
    path.write_text(json.dumps(stored))
    observation = {"observation.state": np.float32([np.linspace(-1, 1, 6)])}
    older = load_residual(tmp_path)
    assert np.array_equal(older.predict(observation), acting.predict(observation))
    params["of_tomorrow"] = 1
    path.write_text(json.dumps(stored))
    with pytest.raises(
        ConfigError, match=r"config\.json: networks\.params\.of_tomorrow is none of"
    ):
        load_residual(tmp_path)


def test_lerobot_rollout_runs_base_and_residual_on_a_robot(lerobot, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    acting = residual_folder(tmp_path / "outputs/lift_policy")
    (rollout,) = commands("lerobot-rollout")
    wanted = [arg for arg in rollout if not arg.startswith(("--robot", "--duration"))]
    assert len(wanted) == 2
    lerobot(
        "lerobot.scripts.lerobot_rollout",
        *wanted,
        "--robot.discover_packages_path=point_robot",
        "--robot.type=point",
        "--robot.record=record.json",
        f"--robot.calibration_dir={tmp_path}",
        "--fps=50",
        "--duration=1",
        "--return_to_initial_position=false",
    )
    record = json.loads(pathlib.Path("record.json").read_text())
    assert len(record["actions"]) > 8
    for state, action in zip(record["states"], record["actions"], strict=True):
        expected = acting.predict({"observation.state": np.float32([state])})
        np.testing.assert_allclose(action, expected[0], rtol=0, atol=1e-5)


def test_the_flow_over_chunks_plays_what_a_chunk_cache_plays(tmp_path):
    env, params = StatePoint(), ACRLPDParams(hidden_dims=[16], num_candidates=3, horizon=4)
    networks = ChunkedNetworks.of_spaces(env.observation_space, env.action_space, params)
    learnt = ChunkPolicy(networks, {"observation.state": (6,)})
    write_policy(tmp_path, learnt)
    config = PreTrainedConfig.from_pretrained(tmp_path, cli_overrides=["--n_action_steps=3"])
    policy = get_policy_class(config.type).from_pretrained(tmp_path, config=config)
    before, after = make_pre_post_processors(config, str(tmp_path))
    params.n_action_steps = 3
    chunks = ChunkCache(ChunkPolicy(networks, {"observation.state": (6,)}), num_envs=2)
    rng = np.random.default_rng(0)
    for step in range(8):
        observed = rng.normal(size=(2, 6)).astype(np.float32)
        if step in (0, 5):  # an episode begins
            policy.reset()  # the init states 0 and 1, then 2 and 3
            chunks.reset([0, 1], [(0, state + 2 * (step > 0)) for state in (0, 1)])
        expected = chunks.act({"observation.state": observed}, ["", ""])
        batch = before({"observation.state": torch.from_numpy(observed), "task": ["", ""]})
        np.testing.assert_array_equal(after(policy.select_action(batch)).numpy(), expected)
    assert policy.predict_action_chunk(batch).shape == (2, 4, 7)
    assert not policy.supports_rtc()

    config.device = "cuda"  # as by --policy.device, on a machine that has one
    if torch.cuda.is_available():
        there = get_policy_class(config.type).from_pretrained(tmp_path, config=config)
        assert there._acting.base_policy.networks.action_low.device.type == "cuda"
    else:
        with pytest.raises(ValueError, match="no CUDA device here"):
            get_policy_class(config.type).from_pretrained(tmp_path, config=config)
