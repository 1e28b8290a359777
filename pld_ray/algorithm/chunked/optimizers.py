"""Which loss of Q-chunking trains what, and with which optimiser."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from pld_ray.algorithm.chunked.actor import DistilledActor
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.optimizers import make_adams, trainable
from pld_ray.config.acrlpd import ACRLPDParams


def trained_parameters(networks: ChunkedNetworks) -> dict[str, list[nn.Parameter]]:
    """The parameters that each loss trains, and no other does."""
    actor = networks.actor
    groups = {"critic": [*networks.critic.parameters(), *trainable(networks.critic_encoder)]}
    if isinstance(actor, DistilledActor):
        return groups | {
            "flow": trainable(actor.flow),
            "one_step": list(actor.one_step.parameters()),
        }
    groups[actor.kind] = trainable(actor)
    if networks.log_alpha is not None:
        groups["temperature"] = [networks.log_alpha]
    return groups


def make_optimizers(networks: ChunkedNetworks, params: ACRLPDParams) -> dict[str, Optimizer]:
    """See `make_adams`, for each group of `trained_parameters`."""
    groups = trained_parameters(networks)
    return make_adams(groups, optimizer_rates(groups, params), params.weight_decay)


def optimizer_rates(names: Iterable[str], params: ACRLPDParams) -> dict[str, float]:
    """Learning rate of each group."""
    return dict.fromkeys(names, params.actor_lr) | {"critic": params.critic_lr}
