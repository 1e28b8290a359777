"""Processes of a test that train together through gloo."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from policy_fixtures import save_act
from safetensors.torch import load_file
from sharded_data import write_dataset

from pld_ray.config.finetune import (
    FinetuneConfig,
    FinetunedPolicyConfig,
    FinetuneParams,
    LearnersConfig,
)
from pld_ray.data.training_windows import TrainingWindows, find_episodes
from pld_ray.jobs.checkpoint_writer import CheckpointWriter
from pld_ray.runs.run_dir import RunError
from pld_ray.sharded.ranks import Ranks
from pld_ray.sharded.shards import Sharding, held
from pld_ray.sharded.trainee import load_trainee
from pld_ray.sharded.trainer import Trainer, ValidationBatches, batches_from

FIGURES = "figures.json"
FAILURE = "failure-"
PARAMS = FinetuneParams(
    batch_size=24, accumulation=2, learning_rate=1e-4, warmup_updates=2, grad_clip_norm=0.5
)
SMALL = LearnersConfig(num_learners=2, whole_parameter_mb=0.001)
PRELOADED = ["pld_ray.jobs.finetune_learner", "pld_ray.sharded.chunked"]
FILES = [f"{name}.safetensors" for name in ("policy", "average", "optimizer")]


def on_ranks(number: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(ranks, *arguments)` in so many processes; an error in one is raised here."""
    multiprocessing.set_forkserver_preload(PRELOADED)  # imported once, not by every rank
    with tempfile.TemporaryDirectory() as meeting:  # a port might be another's by then
        torch.multiprocessing.start_processes(
            _run, (number, meeting, function, arguments), nprocs=number, start_method="forkserver"
        )


def _run(
    rank: int, number: int, meeting: str, function: Callable[..., None], arguments: Any
) -> None:
    torch.set_num_threads(1)
    store = f"file://{meeting}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=number)
    try:
        function(Ranks(rank, number, planned=2), *arguments)
    finally:
        dist.destroy_process_group()


def held_bytes(module: torch.nn.Module) -> int:
    """Bytes of the parameters that this rank holds."""
    local = (held(p) for p in module.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def trained(
    ranks: Ranks,
    folder: pathlib.Path,
    out: str,
    updates: int,
    begin: str | None = None,
    **changes: Any,
) -> None:
    """So many updates, from the beginning or from components; writes the components.

    Args:
        changes: of PARAMS.
    """
    parts = PARAMS.accumulation * 2 // ranks.planned
    params = dataclasses.replace(PARAMS, accumulation=parts, **changes)
    place = FinetunedPolicyConfig(path=str(folder / "act"))
    trainee = load_trainee(FinetuneConfig(algorithm=params, policy=place))
    windows = TrainingWindows(
        find_episodes([folder / "data"], trainee.needed, True), trainee.needed
    )
    whole = held_bytes(trainee.policy)
    sharding = Sharding(ranks, SMALL, "cpu") if ranks.number > 1 else None
    trainer = Trainer(trainee, params, 10, 1, ranks, sharding)
    if begin is not None:
        trainer.load(folder / begin)
    figures: dict[str, float] = {}
    todo = range(trainer.updates, trainer.updates + updates)
    for micro_batches in batches_from(windows, params, todo, 0, ranks):
        figures = trainer.update(micro_batches)
    loss = trainer.validation_loss(ValidationBatches(windows, 16))
    if components := trainer.components():
        components.write(folder / out)
    policies = (trainer.policy, trainer.average.module)
    share = max(held_bytes(policy) for policy in policies) / whole
    memory = trainer.memory()
    if ranks.first:
        figures |= {"validation": loss, "share": share, **memory}
        (folder / out / FIGURES).write_text(json.dumps(figures))


def train_in_all_ways(folder: pathlib.Path) -> pathlib.Path:
    """Components of one and of two processes, straight on and with the number changing between."""
    save_act(folder / "act")
    write_dataset(folder / "data", (12, 3, 9, 20, 7))
    trained(Ranks(), folder, "one", 4)
    trained(Ranks(), folder, "one-bfloat16", 4, precision="bfloat16")
    on_ranks(2, two_first, folder)
    trained(Ranks(planned=2), folder, "one-middle", 1, "two-first")
    on_ranks(2, trained, folder, "two-last", 1, "one-middle")
    return folder


def two_first(ranks: Ranks, folder: pathlib.Path) -> None:
    """Straight on, and the beginning of what changes."""
    trained(ranks, folder, "two", 4)
    trained(ranks, folder, "two-first", 2)
    trained(ranks, folder, "two-again", 4, activation_checkpointing=True)
    trained(ranks, folder, "two-bfloat16", 4, precision="bfloat16")
    (folder / f"{FAILURE}{ranks.rank}").write_text(failure_of_the_first(ranks))


def failure_of_the_first(ranks: Ranks) -> str:
    """What each rank is told when the first one cannot write."""
    with CheckpointWriter(ranks) as writer:
        writer.settle()
        if ranks.first:
            writer.begin(lambda: pathlib.Path("/nowhere/x").touch())
        try:
            writer.settle()
        except RunError as error:
            return str(error)
    return ""


def difference(one: pathlib.Path, other: pathlib.Path) -> float:
    """The greatest one of any weight, average or moment."""
    worst = 0.0
    for file in FILES:
        mine, theirs = load_file(one / file), load_file(other / file)
        assert mine.keys() == theirs.keys()
        assert all(mine[name].shape == theirs[name].shape for name in mine)
        found = [(mine[k] - theirs[k]).abs().max() for k in mine if mine[k].numel()]
        worst = max(worst, float(max(found)))
    return worst
