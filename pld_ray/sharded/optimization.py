"""Optimiser, learning rate and averaged weights, each PyTorch's or the policy's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pld_ray.config.finetune import FinetuneParams


def make_optimizer(policy: Any, params: FinetuneParams) -> tuple[torch.optim.Optimizer, float]:
    """The policy's own preset with what the configuration changes.

    Args:
        policy: a LeRobot policy.
        params: None takes the preset's value.

    Returns:
        The optimiser over all that asks for a gradient, and the greatest norm of a gradient.
    """
    preset = policy.config.get_optimizer_preset()
    given = {
        "lr": params.learning_rate,
        "weight_decay": params.weight_decay,
        "grad_clip_norm": params.grad_clip_norm,
    }
    preset = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})
    groups = []
    for group in parameter_groups(policy.get_optim_params()):
        rate = preset.lr if params.learning_rate is not None else group.get("lr", preset.lr)
        kept = [parameter for parameter in group["params"] if parameter.requires_grad]
        if kept:
            groups.append({**group, "params": kept, "lr": rate, "initial_lr": rate})
    # 0 of a preset means "do not clip" to LeRobot
    return preset.build(groups), float(preset.grad_clip_norm) or math.inf


def parameter_groups(given: Any) -> list[dict[str, Any]]:
    """What `get_optim_params` returns, parameters or groups of them, as groups."""
    items = list(given)
    return items if items and isinstance(items[0], dict) else [{"params": items}]


def learning_rate_share(update: int, total: int, params: FinetuneParams) -> float:
    """Share of the highest learning rate at an update [0, total): linear warm-up, half a cosine."""
    warm = min(1.0, (update + 1) / max(1, params.warmup_updates))
    cosine = 0.5 + 0.5 * math.cos(math.pi * update / total)
    return warm * (params.final_learning_rate + (1 - params.final_learning_rate) * cosine)


class MovingAverage(AveragedModel):
    """PyTorch's, in float32 whatever the policy is in: in bfloat16 a share of .001 of a change is
    none.

    Args:
        policy: whose weights are averaged.
        decay: see `moving_average`.
    """

    def __init__(self, policy: nn.Module, decay: float) -> None:
        super().__init__(policy)
        self.module.float()
        self._average = moving_average(decay)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        averaged: list[Tensor] = list(self.module.parameters())
        of = list(model.parameters())
        current = [v.to(mean.dtype) for mean, v in zip(averaged, of, strict=True)]
        if self.n_averaged == 0:
            for mean, value in zip(averaged, current, strict=True):
                mean.copy_(value)
        else:
            self._average(averaged, current, self.n_averaged)
        for buffer, value in zip(self.module.buffers(), model.buffers(), strict=True):
            buffer.copy_(value)
        self.n_averaged += 1


def moving_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """theta_bar <- d theta_bar + (1 - d) theta with d = min(decay, (1 + n) / (10 + n)).

    n counts the averages before; without the second term the first updates of a short run would
    leave nothing but the policy that it began with.
    """

    @torch.no_grad()
    def average(averaged: list[Tensor], current: list[Tensor], number: Tensor | int) -> None:
        n = int(number)
        weight = 1.0 - min(decay, (1 + n) / (10 + n))
        for mean, value in zip(averaged, current, strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, weight)
            else:
                mean.copy_(value)

    return average
