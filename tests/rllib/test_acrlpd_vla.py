"""A SmolVLA in ACRLPD's learner and runner of this process, from a policy folder to one."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from camera_point import CAMERAS, CameraPoint
from point_demonstrations import EPISODE_LENGTH, SIDE, record
from safetensors.torch import load_file, save_file
from tiny_policies import make_observations, save_policy

from pld_ray.cli import main
from pld_ray.data.demonstrations import episodes_in
from pld_ray.evaluation.requests import Contestant
from pld_ray.policies import load_base_policy
from pld_ray.policies.actors import write_actor
from pld_ray.rllib.chunked import ACRLPDConfig
from pld_ray.rllib.chunked.offline import as_stored
from pld_ray.rollout.episode import concatenate_episodes
from pld_ray.rollout.messages import ReplayBatch, SampleRequest

pytestmark = pytest.mark.usefixtures("ray_cluster")
KWARGS = {"episode_length": EPISODE_LENGTH, "side": SIDE}
ENTRY_POINT = "camera_point:CameraPoint"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("vla")
    record(root / "demonstrations", episodes=4, env=CameraPoint(EPISODE_LENGTH, SIDE))
    save_policy("smolvla", root)
    return root


def make_config(root):
    return (
        ACRLPDConfig()
        .environment(
            env_config={
                "entry_point": ENTRY_POINT,
                "kwargs": KWARGS,
                "base_policy": {"type": "none"},
            }
        )
        .env_runners(num_env_runners=0)
        .training(
            demo_path=[str(root / "demonstrations")],
            actor="lerobot",
            actor_task="go",
            actor_path=str(root / "checkpoint"),
            actor_tokenizer_path=str(root / "tokenizer"),
            horizon=5,
            flow_steps=2,
            batch_size=4,
            hidden_dims=[16],
            num_critics=2,
            num_candidates=3,
            target_candidates=2,
            bc_weight=1.0,
        )
        .debugging(seed=3, log_level="ERROR")
    )


def test_a_smolvla_is_trained_plays_and_is_written_as_lerobot_loads_it(paths, tmp_path):
    config = make_config(paths)
    config.validate()
    runner = config.env_runner_cls(config=config, worker_index=0)
    spec = config.get_multi_rl_module_spec(env=runner.env)
    learner = config.get_default_learner_class()(config=config, module_spec=spec)
    learner.build()
    wanted, _ = runner.describe_environment()
    assert set(CAMERAS) <= wanted.observations.keys()
    found = [as_stored(e, wanted) for _, _, e in episodes_in(*config.demo_path, wanted, False)]
    learner.store([ReplayBatch(*concatenate_episodes(found), "offline", 0)])
    learner.fit_normalizer()
    metrics = learner.train(2, 0.0)
    assert {"flow_loss", "critic_loss"} <= metrics.keys()

    runner.module.set_state(learner.module["default_policy"].get_state(inference_only=True))
    batch = runner.sample_episodes(SampleRequest(30))
    assert batch.num_env_steps >= 30
    assert set(CAMERAS) <= batch.columns.keys()
    learner.store([ReplayBatch(batch.columns, batch.episode_lengths, "online", 0)])
    learner.train(1, 0.0)
    for contestant in (Contestant(), Contestant(residual=False)):
        assert runner.evaluate([0], contestant) == runner.evaluate([0], contestant)

    (tmp_path / "state").mkdir()
    learner.save(str(tmp_path / "state"))
    kept = {name: value.clone() for name, value in learner.networks.state_dict().items()}
    learner.train(1, 0.0)
    learner.load(str(tmp_path / "state"))
    for name, value in learner.networks.state_dict().items():
        assert torch.equal(value, kept[name]), name

    write_actor(learner.networks.ema_actor, tmp_path / "policy")
    assert json.loads((tmp_path / "policy/config.json").read_text())["chunk_size"] == 5
    policy = load_base_policy(tmp_path / "policy", tokenizer_path=paths / "tokenizer")
    observation = make_observations(1, 0)
    chunk = policy.infer(observation, ["go"], [0], [3]).chunks
    noise = torch.randn(
        learner.networks.actor.noise_shape, generator=torch.Generator().manual_seed(3)
    )
    given = {name: torch.from_numpy(value) for name, value in observation.items()}
    given["observation.environment_state"] = torch.zeros(1, 24)
    with torch.inference_mode():
        ours = learner.networks.act(given, noise[None, None], cloned=True)
    np.testing.assert_allclose(chunk, ours.numpy(), atol=1e-5)
    joined = load_base_policy(tmp_path / "policy", tokenizer_path=paths / "tokenizer", rtc=True)
    first = joined.infer(observation, ["go"], [0], [3])
    np.testing.assert_array_equal(first.chunks, chunk)
    left = np.full_like(first.normalized, np.nan)
    left[:, :3] = first.normalized[:, 2:5]
    second = joined.infer(observation, ["go"], [0], [4], leftovers=left).normalized
    free = joined.infer(observation, ["go"], [0], [4]).normalized
    assert np.abs(second - left)[:, :3].mean() < np.abs(free - left)[:, :3].mean()
    runner.stop()


def test_what_the_policy_has_no_spread_for_is_said_where_demonstrations_move_it(
    paths, tmp_path, caplog
):
    folder = shutil.copytree(paths / "checkpoint", tmp_path / "checkpoint")
    for file in folder.glob("policy_*processor*normalizer*.safetensors"):
        statistics = load_file(file)
        statistics["action.std"][[1, 6]] = 0.0  # of which demonstrations move the first
        save_file(statistics, file)
    config = make_config(paths).training(actor_path=str(folder))
    runner = config.env_runner_cls(config=config, worker_index=0)
    spec = config.get_multi_rl_module_spec(env=runner.env)
    learner = config.get_default_learner_class()(config=config, module_spec=spec)
    learner.build()
    wanted, _ = runner.describe_environment()
    found = [as_stored(e, wanted) for _, _, e in episodes_in(*config.demo_path, wanted, False)]
    learner.store([ReplayBatch(*concatenate_episodes(found), "offline", 0)])
    with caplog.at_level(logging.WARNING, "pld_ray"):
        learner.fit_normalizer()
    networks = learner.networks
    still = networks.action_low[[1, 6]]
    furthest = np.abs(np.concatenate([e["action"][:-1, 1] for e in found]) - still[0].item()).max()
    (message,) = [m for m in caplog.messages if "the demonstrations moved action dimension" in m]
    assert f"dimension 1 by {furthest:.3g}" in message
    assert not networks.moved[[1, 6]].any()
    assert networks.moved[[0, 2, 3, 4, 5]].all()
    assert learner.train(1, 0.0)["critic_loss"] < 1e3
    runner.stop()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algorithm.horizon=7"], "has chunk_size=6: algorithm.horizon=7 is more, lower it to 6"),
        (
            ["--env.entry_point=envs.point:PointEnv"],
            "needs ['observation.images.image', 'observati",
        ),
        (
            ["--algorithm.actor_tokenizer_path=gone"],
            "tokenizer_path 'gone' is not a directory",
        ),
        (
            ["--algorithm.batch_size=1000000", "--algorithm.hidden_dims=[2]"],
            "keeps of an observation would take at least",
        ),
    ],
)
def test_a_start_is_refused(paths, flags, message, capsys):
    start = [
        f"--env.kwargs={{episode_length: {EPISODE_LENGTH}, side: {SIDE}}}",
        "--env.task=point",
        "--algorithm.actor=lerobot",
        "--algorithm.actor_task=go",
        f"--algorithm.actor_path={paths / 'checkpoint'}",
        "--algorithm.num_critics=2",
        f"--demo_path={paths / 'demonstrations'}",
        "--evaluation.held_states=1",
        "--evaluation.validation_states=1",
        "--tracking.enabled=false",
    ]
    if not any("tokenizer" in flag for flag in flags):
        start.append(f"--algorithm.actor_tokenizer_path={paths / 'tokenizer'}")
    if not any("entry_point" in flag for flag in flags):
        start.append(f"--env.entry_point={ENTRY_POINT}")
    assert main(["acrlpd", *start, *flags, "--dry_run"]) != 0
    assert message in capsys.readouterr().err
