"""Trainers of LeRobot's policies in miniature, and batches for them."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from policy_fixtures import save_act
from torch.profiler import ProfilerActivity, profile

from pld_ray.config.finetune import FinetuneConfig, FinetunedPolicyConfig, FinetuneParams
from pld_ray.data.training_windows import Needed
from pld_ray.sharded.trainee import load_trainee
from pld_ray.sharded.trainer import Trainer


def save_tiny(kind: str, folder: pathlib.Path) -> pathlib.Path:
    from tiny_policies import save_policy

    if kind == "act":  # from states, without a backbone
        return save_act(folder / "act")
    return save_policy(kind, folder / "tiny")


def tokenizer(policy: pathlib.Path) -> pathlib.Path:
    return policy.parent / "tokenizer"


@contextlib.contextmanager
def tiny_trainer(policy: pathlib.Path, **changes: Any) -> Iterator[Trainer]:
    """Of a saved policy; inside, LeRobot's networks are small."""
    from tiny_policies import small_networks

    params = FinetuneParams(learning_rate=1e-3, warmup_updates=2, grad_clip_norm=0.5, **changes)
    place = FinetunedPolicyConfig(path=str(policy), tokenizer_path=str(tokenizer(policy)))
    with small_networks():
        trainee = load_trainee(FinetuneConfig(algorithm=params, policy=place))
        yield Trainer(trainee, params, 10, seed=1)


def random_batch(needed: Needed, size: int) -> dict[str, Any]:
    steps = () if needed.observation_steps is None else (len(needed.observation_steps),)
    rng = np.random.default_rng(0)
    batch: dict[str, Any] = {
        own: torch.from_numpy(rng.random((size, *steps, *needed.shapes[name]))).float()
        for name, own in needed.names.items()
    }
    horizon = len(needed.action_steps)
    actions = rng.standard_normal((size, horizon, needed.action_dim))
    return batch | {
        "action": torch.from_numpy(actions).float(),
        "action_is_pad": torch.zeros(size, horizon, dtype=torch.bool),
        "task": ["lift the can"] * size,
    }


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """The most that PyTorch held at once on the CPU beside what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function(*arguments)
    found = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(found, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def activation_checkpointing_share(kind: str, folder: pathlib.Path) -> float:
    """What an update takes with it, over what it takes without; of a tiny policy, 16 windows."""
    policy = save_tiny(kind, folder)
    peaks = []
    for again in (True, False):
        with tiny_trainer(policy, activation_checkpointing=again) as trainer:
            batch = random_batch(trainer.trainee.needed, 16)
            trainer.update([batch])  # moments are there
            peaks.append(peak_bytes(trainer.update, [batch]))
    return peaks[0] / peaks[1]
