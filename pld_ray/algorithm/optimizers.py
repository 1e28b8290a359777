"""One optimiser per group of parameters, and who trains what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pld_ray.config.residual_sac import ResidualSACParams

AllReduce = Callable[[Sequence[Tensor]], None]
"""Averages tensors over all learners, in place."""


def trained_parameters(networks: Any) -> dict[str, list[nn.Parameter]]:
    """The parameters that each loss trains.

    A shared encoder learns from the critics alone (seed 004, section 5.1); an actor with an encoder
    of its own trains it.
    """
    critic_encoder = networks.critic_encoder or networks.encoder
    actor = list(networks.actor.parameters())
    if networks.critic_encoder is not None:
        actor += trainable(networks.encoder)
    groups = {
        "critic": [*trainable(networks.critic), *trainable(critic_encoder)],
        "actor": actor,
        "temperature": [networks.log_alpha],
    }
    if networks.discrete_critic is not None:
        groups["discrete_critic"] = list(networks.discrete_critic.parameters())
    return groups


def target_pairs(networks: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters of the targets, and those that they follow, in the same order."""
    critic_encoder = networks.critic_encoder or networks.encoder
    targets = [*networks.target_critic.parameters(), *networks.target_encoder.parameters()]
    online = [*networks.critic.parameters(), *critic_encoder.parameters()]
    if getattr(networks, "discrete_critic", None) is not None:
        targets += networks.target_discrete_critic.parameters()
        online += networks.discrete_critic.parameters()
    return targets, online


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that carry a gradient."""
    return [p for p in module.parameters() if p.requires_grad]


def make_optimizers(networks: Any, params: ResidualSACParams) -> dict[str, Optimizer]:
    """See `make_adams`, for each group of `trained_parameters`."""
    rates = {
        "critic": params.critic_lr,
        "actor": params.actor_lr,
        "temperature": params.temperature_lr,
        "discrete_critic": params.critic_lr,
    }
    return make_adams(trained_parameters(networks), rates, params.weight_decay)


def make_adams(
    groups: Mapping[str, Sequence[Any]], rates: Mapping[str, float], weight_decay: float
) -> dict[str, Optimizer]:
    """Fused Adam for each group, AdamW with weight decay; a temperature never decays.

    Args:
        groups: name -> parameters, or groups of them as PyTorch's optimisers take them.
        rates: name -> learning rate.
    """
    return {
        name: torch.optim.AdamW(
            list(group),
            rates[name],
            weight_decay=0.0 if name == "temperature" else weight_decay,
            fused=True,
        )
        for name, group in groups.items()
    }
