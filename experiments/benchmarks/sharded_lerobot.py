"""Samples per second of our fine-tuning beside LeRobot's own training script, in one process.

Both train the same policy folder on the same dataset with the same batch: LeRobot through its
`lerobot_train.train`, ours through the `Trainer` of `pld-ray finetune`; what is timed are whole
turns of each loop, reading and preparing the batch included. They take turns, and the ratio is of
medians.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pathlib
import statistics
import time
from unittest import mock

import numpy as np

from pld_ray.config.finetune import FinetuneConfig, FinetunedPolicyConfig, FinetuneParams
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.data.training_windows import TrainingWindows, find_episodes
from pld_ray.sharded.trainee import load_trainee
from pld_ray.sharded.trainer import Trainer, batches_from

SIDE, EPISODES, LENGTH = 64, 20, 50
WARM = 2
"""Updates of a turn that are not counted."""
FLAGS = ("terminated", "truncated", "success", "intervened")


def versus_lerobot(kind: str, folder: pathlib.Path, batch: int, turns: int, updates: int) -> float:
    """Our samples per second over LeRobot's.

    Args:
        kind: `act` (the embedded size, from states) or `smolvla` (tiny, two cameras).
        folder: for what is written.
        batch: windows of an update.
        turns: of each contestant.
        updates: of a turn.
    """
    policy, tokenizer = save_policy(kind, folder / "policy")
    dataset = write_dataset(folder / "data", cameras=kind == "smolvla")
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(turns):
        seconds["ours"] += our_turn(policy, tokenizer, dataset, batch, updates)
        seconds["theirs"] += their_turn(policy, dataset, batch, updates)
    return statistics.median(seconds["theirs"]) / statistics.median(seconds["ours"])


def save_policy(kind: str, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """A policy folder with its processors, and the folder of its tokeniser."""
    import tiny_policies

    settings = {}
    if kind == "act":  # as the embedded one
        features = {
            "observation.state": tiny_policies.PolicyFeature(tiny_policies.FeatureType.STATE, (8,)),
            "observation.environment_state": tiny_policies.PolicyFeature(
                tiny_policies.FeatureType.ENV, (24,)
            ),
        }
        sizes = {"dim_model": 128, "n_heads": 4, "dim_feedforward": 256, "n_encoder_layers": 1}
        settings = {**sizes, "chunk_size": 8, "dropout": 0.0, "input_features": features}
    policy = tiny_policies.save_policy(kind, folder, **settings)
    tokenizer = folder / "tokenizer"
    for name in ("config.json", "policy_preprocessor.json"):  # LeRobot would ask the hub for them
        file = policy / name
        content = json.loads(file.read_text())
        if "vlm_model_name" in content:
            content["vlm_model_name"] = str(tokenizer)
        for step in content.get("steps", []):
            if "tokenizer_name" in step["config"]:
                step["config"]["tokenizer_name"] = str(tokenizer)
        file.write_text(json.dumps(content))
    return policy, tokenizer


def write_dataset(root: pathlib.Path, cameras: bool) -> pathlib.Path:
    """Episodes of noise."""
    rng = np.random.default_rng(0)
    writer = EpisodeWriter(root, Recording("lift the can", 20))
    rows = LENGTH + 1
    for _ in range(EPISODES):
        columns = {
            name: rng.uniform(-1, 1, (rows, width)).astype(np.float32)
            for name, width in (("observation.state", 8), ("base_action", 7), ("action", 7))
        }
        columns |= {name: np.zeros(rows, np.float32) for name in ("reward", "residual_scale")}
        columns |= {name: np.zeros(rows, bool) for name in FLAGS}
        columns["success"][LENGTH - 1] = columns["terminated"][LENGTH - 1] = True
        if cameras:
            for camera in ("image", "image2"):
                columns[f"observation.images.{camera}"] = rng.integers(
                    0, 256, (rows, SIDE, SIDE, 3), np.uint8
                )
        else:
            columns["observation.environment_state"] = rng.standard_normal((rows, 24), np.float32)
        writer.add(columns)
    writer.finish()
    return root


def our_turn(
    policy: pathlib.Path, tokenizer: pathlib.Path, dataset: pathlib.Path, batch: int, updates: int
) -> list[float]:
    """Seconds of each update."""
    params = FinetuneParams(batch_size=batch, learning_rate=1e-4)
    place = FinetunedPolicyConfig(path=str(policy), tokenizer_path=str(tokenizer))
    config = FinetuneConfig(policy=place, algorithm=params, device="cpu")
    trainee = load_trainee(config)
    windows = TrainingWindows(find_episodes([dataset], trainee.needed, True), trainee.needed)
    trainer = Trainer(trainee, params, updates, seed=0)
    times = [time.perf_counter()]
    for micro_batches in batches_from(windows, params, range(updates), 0):
        trainer.update(micro_batches)
        times.append(time.perf_counter())
    return np.diff(times)[WARM:].tolist()


def their_turn(
    policy: pathlib.Path, dataset: pathlib.Path, batch: int, updates: int
) -> list[float]:
    """Seconds between the ends of the updates of LeRobot's script."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.scripts import lerobot_train

    config = PreTrainedConfig.from_pretrained(policy)
    config.pretrained_path, config.push_to_hub, config.device = policy, False, "cpu"
    pipeline = TrainPipelineConfig(
        dataset=DatasetConfig(repo_id="local/bench", root=str(dataset), use_imagenet_stats=False),
        policy=config,
        output_dir=dataset.parent / "lerobot",
        num_workers=0,
        batch_size=batch,
        steps=updates,
        save_checkpoint=False,
        seed=0,
    )
    times: list[float] = []
    update = lerobot_train.update_policy

    def timed(*args: object, **kwargs: object) -> object:
        done = update(*args, **kwargs)
        times.append(time.perf_counter())
        return done

    logging.disable(logging.CRITICAL)
    with (
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.object(lerobot_train, "update_policy", timed),
    ):
        lerobot_train.train(pipeline)
    logging.disable(logging.NOTSET)
    return np.diff(times)[WARM - 1 :].tolist()
