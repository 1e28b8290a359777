"""Whatever shapes a collected column is in the identity of the data; the rest is named here."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from toy import CountingEnv, CountingPolicy

from pld_ray.config import TrainConfig
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.jobs.build import offline_cache_folder
from pld_ray.networks.reward_classifier import ABOUT_FILE, WEIGHTS_FILE, ClassifierError
from pld_ray.policies import EMBEDDED_ACT
from pld_ray.rllib.collection import collection_identity
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.env_group import InProcessEnvs
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

CANNOT_SHAPE_A_COLUMN = {
    "after the collection": {
        "total_steps", "seed", "pretrained_critic", "max_failures",
        "norm_stats", "norm_stats_mode", "dump_interval",
        "runners.sampling", "runners.requests_in_flight", "runners.publish_interval",
        "runners.max_staleness", "runners.num_learners", "runners.num_gpus_per_learner",
    },
    "where it runs, and how long that may take": {
        "env.assets", "env.control_hz", "output_dir", "offline_cache", "ray_address", "ray_port",
        "policy.placement", "policy.replicas", "policy.max_replicas", "policy.max_batch_size",
        "policy.max_wait_ms", "policy.num_cpus_per_replica", "policy.num_gpus_per_replica",
        "policy.deadline_s", "policy.hang_timeout_s",
        "runners.num_cpus_per_env_runner", "runners.vectorization", "runners.step_timeout_s",
        "runners.reset_timeout_s", "runners.stall_timeout_s",
    },
    "of an environment that is not in use": {"env.kwargs"},
    "of demonstrations, without any": {"demo_episodes"},
}  # fmt: skip
GROUPS_AFTER = ("evaluation", "checkpoint", "placement", "tracking")
IN_IDENTITY = {
    "offline_episodes", "collection_steps", "warmup_steps", "warmup_actions", "compose_base",
    "gripper", "gripper_dims", "grasp_penalty",
}  # fmt: skip
CHOICES: dict[str, Any] = {
    "algorithm.gripper": "discrete",
    "algorithm.gripper_dims": [1],
    "algorithm.warmup_actions": "random",
    "algorithm.exploration_noise": "held",
    "policy.type": "none",
    "policy.features": "pooled",
}


def other(name: str, value: Any) -> Any:
    """A value unlike the present one."""
    if name in CHOICES:
        return CHOICES[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, *value] if value else ["image"]
    if isinstance(value, dict):
        return {"other": 1.0}
    return "other"


def demonstration(root: pathlib.Path) -> pathlib.Path:
    """A dataset of one transition."""
    writer = EpisodeWriter(root, Recording(task="reach", fps=20))
    zeros = np.zeros(2, np.float32)
    columns = {"action": np.zeros((2, 7), np.float32), "reward": zeros, "residual_scale": zeros}
    flags = {"terminated": zeros > 0, "truncated": zeros > 0, "success": np.array([True, False])}
    writer.add(columns | flags)
    writer.finish()
    return root


def classifier(root: pathlib.Path, threshold: float = 0.5, weights: bytes = b"w") -> pathlib.Path:
    """The files of one, which nobody loads."""
    root.mkdir(exist_ok=True)
    (root / ABOUT_FILE).write_text(json.dumps({"threshold": threshold}))
    (root / WEIGHTS_FILE).write_bytes(weights)
    return root


def leaves(config: Any, prefix: str = "") -> list[str]:
    names: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        group = dataclasses.is_dataclass(value)
        names += leaves(value, f"{prefix}{field.name}.") if group else [prefix + field.name]
    return names


def changed(name: str, value: Any = None) -> TrainConfig:
    config = TrainConfig()
    *groups, field = name.split(".")
    owner: Any = config
    for group in groups:
        owner = getattr(owner, group)
    value = other(name, getattr(owner, field)) if value is None else value
    setattr(owner, field, value)
    return config


@pytest.mark.parametrize("group", ["", "env", "policy", "runners", "algorithm", *GROUPS_AFTER])
def test_each_setting_is_in_the_identity_or_said_to_shape_no_column(group, tmp_path):
    allowed = set().union(*CANNOT_SHAPE_A_COLUMN.values())
    plain = collection_identity(ResidualSACConfig.of_run(TrainConfig()))
    for name in leaves(TrainConfig()):
        if name.rpartition(".")[0] != group:
            continue
        value = None
        if name == "policy.path":
            value = str(tmp_path / "policy")
            shutil.copytree(EMBEDDED_ACT, value)
            file = tmp_path / "policy" / "config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), "dropout": 0.5}))
        if name == "env.reward_classifier":
            value = str(classifier(tmp_path / "classifier"))
        if name == "demo_path":
            value = [str(demonstration(tmp_path / "demo"))]
        identity = collection_identity(ResidualSACConfig.of_run(changed(name, value)))
        if group == "algorithm":
            free = name.removeprefix("algorithm.") not in IN_IDENTITY
        else:
            free = name in allowed or group in GROUPS_AFTER
        assert (identity == plain) == free, (
            f"{name}: does it shape what the collection stores? Put it into collection.py's "
            "identity, or into this test's list of what cannot"
        )


def test_demonstrations_are_told_apart_by_their_content(tmp_path):
    root = demonstration(tmp_path / "demo")
    first, second = (
        collection_identity(ResidualSACConfig.of_run(changed(name, value)))
        for name, value in (("demo_path", [str(root)]), ("demo_path", [str(root), str(root)]))
    )
    assert first != second
    moved = shutil.move(root, tmp_path / "moved")
    assert collection_identity(ResidualSACConfig.of_run(changed("demo_path", [moved]))) == first
    of_all = changed("demo_path", [moved])
    of_all.demo_episodes = "all"
    assert collection_identity(ResidualSACConfig.of_run(of_all)) != first


def test_classifiers_are_told_apart_by_their_content(tmp_path):
    def identity(root):
        run = changed("env.reward_classifier", str(root))
        return collection_identity(ResidualSACConfig.of_run(run))

    root = classifier(tmp_path / "made")
    first = identity(root)
    assert identity(classifier(root, threshold=0.9)) != first
    assert identity(classifier(root, weights=b"trained again")) != first
    classifier(root)
    assert identity(shutil.move(root, tmp_path / "moved")) == first
    with pytest.raises(ClassifierError, match=rf"made is no reward classifier, {ABOUT_FILE} is m"):
        identity(root)


def test_the_default_folder_is_named_after_the_identity_and_nothing_else():
    plain = offline_cache_folder(TrainConfig())
    assert offline_cache_folder(changed("algorithm.grasp_penalty")) != plain
    assert offline_cache_folder(changed("runners.num_env_runners")) != plain
    assert offline_cache_folder(changed("seed")) == plain
    assert offline_cache_folder(changed("algorithm.utd")) == plain


def collected(params: ResidualSACParams) -> dict[str, np.ndarray]:
    """Columns of the first episode of a base-only stream whose gripper commands change."""
    env = InfosPerEnv(BaseActionVectorEnv(InProcessEnvs([CountingEnv()]), Toggling()))
    observation, _ = env.reset(seed=0)
    space = env.unwrapped.single_action_space
    rng = np.random.default_rng(0)
    streams = Streams(observation, space, params, NoActor(), rng, True)
    finished = FinishedEpisodes()
    while not finished.columns:
        streams.step(
            env.step, SampleRequest(1, True, params.warmup_actions == "random"), 0, finished
        )
    return finished.columns[0]


class Toggling(CountingPolicy):
    """Opens and closes by turns with its second component, never with its first."""

    def infer(self, observations, tasks, env_ids, seeds=None):
        answer = super().infer(observations, tasks, env_ids, seeds)
        answer.chunks[:, 0, 1], answer.chunks[:, 1, 1] = -1, 1
        return answer


class NoActor:
    residual_scale = 1.0


@pytest.mark.parametrize("actions", ["base", "random"])
@pytest.mark.parametrize("gripper", ["continuous", "discrete"])
def test_a_parameter_that_changes_what_is_stored_is_in_the_identity(gripper, actions):
    """The other way round: by looking at the stored columns."""
    base = ResidualSACParams(gripper=gripper, gripper_dims=[0], warmup_actions=actions)
    plain = collected(base)
    shaping = set()
    for name in vars(base):
        value = other(f"algorithm.{name}", getattr(base, name))
        if name == "gripper":
            value = "continuous" if gripper == "discrete" else "discrete"
        if name == "warmup_actions":
            value = "base" if actions == "random" else "random"
        columns = collected(dataclasses.replace(base, **{name: value}))
        same = columns.keys() == plain.keys() and all(
            np.array_equal(columns[key], plain[key]) for key in plain
        )
        if not same:
            shaping.add(name)
    assert shaping <= IN_IDENTITY
    assert shaping >= {"gripper", "warmup_actions"}
    if gripper == "discrete" and actions == "base":
        toggling = dataclasses.replace(base, gripper_dims=[1])
        assert "gripper_dims" in shaping
        stricter = dataclasses.replace(toggling, grasp_penalty=1.0)
        assert collected(toggling)["discrete_penalty"].any()
        assert (
            collected(stricter)["discrete_penalty"] != collected(toggling)["discrete_penalty"]
        ).any()
