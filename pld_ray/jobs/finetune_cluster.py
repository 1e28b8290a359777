"""Fine-tuning by several processes under Ray Train."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from pld_ray.config.finetune import FinetuneConfig
from pld_ray.jobs.finetune_learner import Advance, find_inputs, learn
from pld_ray.jobs.learners import StopFile, begin_rank, this_rank, train_together
from pld_ray.runs.run_dir import RunDir


def finetune_on_cluster(
    config: FinetuneConfig, run: RunDir, resumes: bool, on_samples: Advance
) -> dict[str, Any]:
    """`learn` on each of the learners; see `train_together`."""
    config = for_learners(config)
    if not resumes:
        run.create(config)
    told = 0

    def on_updates(updates: int) -> None:
        nonlocal told
        on_samples((updates - told) * config.algorithm.batch_size)
        told = updates

    summary: dict[str, Any] = train_together(config, run, resumes, learner, on_updates)
    return summary


def learner(given: dict[str, Any]) -> dict[str, Any]:
    """What each worker of Ray Train runs, from the beginning or from the newest checkpoint."""
    config: FinetuneConfig = given["config"]
    run, ranks = RunDir(given["folder"]), this_rank(config)
    resumes = begin_rank(run, ranks, given["resumes"])
    inputs, stop = find_inputs(config), StopFile(run, ranks)
    return learn(config, run, resumes, inputs, lambda _: None, stop, ranks)


def for_learners(config: FinetuneConfig) -> FinetuneConfig:
    """With paths that hold where the command was not typed, and the device that they were given."""

    policy = dataclasses.replace(
        config.policy,
        path=absolute(config.policy.path),
        tokenizer_path=absolute(config.policy.tokenizer_path),
    )
    datasets = [absolute(path) or path for path in config.dataset]
    device: Any = "cuda" if config.learners.num_gpus_per_learner else "cpu"
    return dataclasses.replace(config, policy=policy, dataset=datasets, device=device)


def absolute(path: str | None) -> str | None:
    """A path that holds wherever a process starts; a name on the hub as it is."""
    return str(pathlib.Path(path).resolve()) if path and pathlib.Path(path).exists() else path
