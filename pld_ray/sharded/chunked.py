"""Q-chunking's update by several ranks: the actor in parts, micro-batches dealt among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from pld_ray.algorithm.chunked.micro_batches import Dealing
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import optimizer_rates, trained_parameters
from pld_ray.algorithm.chunked.update import ChunkedUpdate, WindowReplay
from pld_ray.algorithm.nonfinite import Batch
from pld_ray.algorithm.optimizers import make_adams
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.sharded.ranks import Ranks
from pld_ray.sharded.shards import Sharding, held, sum_and_clip

COMPUTING = ("features", "sample", "bc_loss")
"""Methods of an actor in which it computes, so that its parameters are gathered for them."""


def shard_networks(networks: ChunkedNetworks, sharding: Sharding, policy_type: str) -> None:
    """In place: this rank's part of the actor's large parameters, and of their average.

    Critics, their targets and encoders stay whole. The average never computes while it is trained:
    it has copies of the actor's parts, and shares with it what is never trained.
    """
    actor = networks.actor
    sharding.shard(actor, policy_type)
    for method in COMPUTING:
        register_fsdp_forward_method(actor, method)
    copies: dict[Tensor, nn.Parameter] = {}
    for average, module in zip(networks.ema_actor.modules(), actor.modules(), strict=True):
        for name, parameter in module.named_parameters(recurse=False):
            if is_sharded(parameter):
                if parameter not in copies:
                    trained = parameter.requires_grad
                    copies[parameter] = copied(parameter) if trained else parameter
                setattr(average, name, copies[parameter])


def is_sharded(tensor: Tensor) -> bool:
    """Whether a rank holds a part of it."""
    return isinstance(tensor, DTensor)


def copied(parameter: nn.Parameter) -> nn.Parameter:
    """One of the same value that asks for no gradient."""
    return nn.Parameter(parameter.detach().clone(), requires_grad=False)


def make_optimizers(networks: ChunkedNetworks, params: ACRLPDParams) -> dict[str, Optimizer]:
    """Those of one process, sharded and whole parameters in groups of their own.

    An optimiser's fused step does not take them together.
    """
    groups: dict[str, Any] = {}
    for name, parameters in trained_parameters(networks).items():
        sharded = [p for p in parameters if is_sharded(p)]
        whole = [p for p in parameters if not is_sharded(p)]
        groups[name] = [{"params": kind} for kind in (sharded, whole) if kind]
    return make_adams(groups, optimizer_rates(groups, params), params.weight_decay)


class ShardedUpdate(ChunkedUpdate):
    """`ChunkedUpdate`, whose micro-batches are dealt to the ranks; all make the same calls.

    Args:
        networks: see `shard_networks`; whole where there is one rank.
        optimizers: see `make_optimizers`.
        replay: the same on all ranks.
        params, seed: of the run; `accumulation` is of all ranks together.
        ranks: this process among all.
    """

    def __init__(
        self,
        networks: ChunkedNetworks,
        optimizers: Mapping[str, Optimizer],
        replay: WindowReplay,
        params: ACRLPDParams,
        seed: int,
        ranks: Ranks,
    ) -> None:
        parts = params.accumulation
        dealing = Dealing(parts, ranks.turns(parts), numbered=True)
        self.ranks = ranks
        super().__init__(
            networks, optimizers, replay, params, seed, all_reduce=self._sum, dealing=dealing
        )

    def add(self, name: str, loss: Tensor) -> None:
        """As elsewhere; FSDP puts gradients where the parameters are, and nowhere else."""
        gradients, total = self._added.get(name, ([], torch.zeros_like(loss)))
        if name not in self._added:
            for parameter in self.trained[name]:  # of the last update, or of another's loss
                parameter.grad = None
        loss.backward()
        self._added[name] = gradients, total + loss.detach()

    def apply(self, name: str, batch: Batch) -> None:
        """As elsewhere; gradients are summed over all ranks, and each keeps those of what it
        holds."""
        parameters = self.trained[name]
        (total,) = self.ranks.sum([float(self._added.pop(name)[1])])
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = sum_and_clip(parameters, self.params.grad_clip_norm or math.inf, self.ranks)
        loss = norm.new_tensor(total)
        self.checks.add(name, loss, norm, batch, self.updates)
        self.optimizers[name].step()
        self.metrics.record(f"{name}_loss", loss)
        self.metrics.record(f"{name}_grad_norm", norm)

    def _sum(self, tensors: Sequence[Tensor]) -> None:
        for tensor, total in zip(tensors, self.ranks.sum([float(t) for t in tensors]), strict=True):
            tensor.fill_(total)

    def update_average(self) -> None:
        """See `ChunkedUpdate.update_average`; of what this rank holds."""
        with torch.no_grad():
            averages, of = ([held(t) for t in side] for side in (self.average, self.averaged))
            torch._foreach_lerp_(averages, of, 1.0 - self.params.ema_decay)


# --- whole tensors --------------------------------------------------------------------------------


@torch.no_grad()
def whole_state(state: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Tensors whole and on the host; one after the other, and empty but on the first rank."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if ranks.first:
            found[name] = whole.detach().cpu() if isinstance(whole, Tensor) else whole
    return found


def whole_optimizer_state(
    optimizer: Optimizer, parameters: Sequence[Tensor], ranks: Ranks
) -> dict[str, Any]:
    """As PyTorch gives the state of an optimiser of these parameters in one group."""
    state = {}
    for number, parameter in enumerate(parameters):
        if values := whole_state(optimizer.state[parameter], ranks):
            state[number] = values
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    group = {**settings, "params": list(range(len(parameters)))}
    return {"state": state, "param_groups": [group]}


@torch.no_grad()
def take_whole(own: Tensor, whole: Tensor) -> None:
    """Give a tensor a value, of which this rank keeps what it holds."""
    if isinstance(own, DTensor):
        whole = whole.to(own.device)
        whole = distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)
    own.copy_(whole)


def take_networks(networks: ChunkedNetworks, state: Mapping[str, Any]) -> None:
    """Take whole tensors over.

    Raises:
        RuntimeError: they are of other networks.
    """
    own = networks.state_dict()
    if own.keys() != state.keys():
        raise RuntimeError(f"state of other networks: {sorted(own.keys() ^ state.keys())[:5]}")
    for name, tensor in own.items():
        take_whole(tensor, torch.as_tensor(state[name]))


def take_optimizer_state(
    optimizer: Optimizer, parameters: Sequence[Tensor], state: Mapping[str, Any]
) -> None:
    """Take what `whole_optimizer_state`, or an optimiser of one process, gave."""
    for number, values in state["state"].items():
        parameter = parameters[int(number)]
        for name, value in values.items():
            # a fused optimiser counts its steps where the parameters are
            whole = torch.as_tensor(value).to(parameter.device, copy=True)
            own = torch.zeros_like(parameter) if whole.shape == parameter.shape else whole.clone()
            take_whole(own, whole)
            optimizer.state[parameter][name] = own
    (settings,) = state["param_groups"]
    for group in optimizer.param_groups:
        group.update({name: value for name, value in settings.items() if name != "params"})
