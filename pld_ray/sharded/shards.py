"""A policy in parts over several ranks: PyTorch's `fully_shard` (FSDP2)."""

from __future__ import annotations

import fnmatch
import math
import resource
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from pld_ray.config.finetune import LearnersConfig
from pld_ray.runs.run_dir import RunError
from pld_ray.sharded.ranks import Ranks

TRANSFORMERS = ("*.layers.*.mlp", "*vision*.encoder.layers.*")
UNITS = {
    "act": ("model.encoder.layers.*", "model.vae_encoder.layers.*", "model.decoder.layers.*"),
    "smolvla": TRANSFORMERS,
    "pi0": TRANSFORMERS,
    "pi05": TRANSFORMERS,
}
"""Policy type -> modules that are gathered by themselves, just when they compute.

Only what LeRobot calls as a module can be: it takes the layers of its vision-language-action models
apart and calls their parts, of which the MLPs are most. All else is gathered for the whole of a
forward and a backward pass.
"""


class Sharding:
    """How the policies of a run are laid over its ranks.

    Args:
        ranks: more than one.
        settings: of the run.
        device: `cuda` or `cpu`.
    """

    def __init__(self, ranks: Ranks, settings: LearnersConfig, device: str) -> None:
        self.settings = settings
        self.mesh = make_mesh(ranks.number, settings.replicas, device)

    def shard(self, policy: nn.Module, policy_type: str) -> None:
        """In place: each large parameter becomes a DTensor of which this rank holds a part.

        Raises:
            RunError: trained weights that belong together are of several precisions.
        """
        whole = {p for p in policy.parameters() if stays_whole(p, self.settings)}
        for unit in units(policy, UNITS.get(policy_type, ())):
            self._shard(unit, whole)
        self._shard(policy, whole)

    def _shard(self, module: nn.Module, whole: set[nn.Parameter]) -> None:
        if all(p in whole for p in module.parameters()):
            return
        check_one_precision(module, whole)
        sharded = fully_shard(
            module, mesh=self.mesh, reshard_after_forward=True, ignored_params=whole
        )
        assert isinstance(sharded, FSDPModule)
        # sums, and no means: the loss is weighted by what all ranks have
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)


def check_one_precision(module: nn.Module, whole: Collection[nn.Parameter]) -> None:
    """FSDP2 gathers what belongs together as one: it has to be of one precision.

    Args:
        module: its parameters are sharded together, but for `whole` and those that are already.
        whole: stay whole.

    Raises:
        RunError: those of them that are trained have several.
    """
    found = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in module.parameters()
        if parameter.requires_grad and parameter not in whole and not isinstance(parameter, DTensor)
    }
    if len(found) > 1:
        raise RunError(
            f"the policy's trained weights are of several precisions ({', '.join(sorted(found))}), "
            "which cannot be sharded together: start again with --policy.dtype=float32, "
            "--algorithm.precision=bfloat16 or --learners.num_learners=0"
        )


def make_mesh(number: int, replicas: int, device: str) -> DeviceMesh:
    """Ranks as replicas of shards; with fewer ranks than planned, as many replicas as divide."""
    replicas = math.gcd(number, replicas)
    if replicas == 1:
        return init_device_mesh(device, (number,), mesh_dim_names=("shard",))
    shape = (replicas, number // replicas)
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


def units(policy: nn.Module, patterns: tuple[str, ...]) -> list[nn.Module]:
    """The outermost modules whose names have one of these forms."""
    found: dict[str, nn.Module] = {}
    for name, module in policy.named_modules():  # parents first
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if not inside and any(matches(name, pattern) for pattern in patterns):
            found[name] = module
    return list(found.values())


def matches(name: str, pattern: str) -> bool:
    """Whether a module's name has exactly the form of a pattern, `*` at its end being one part."""
    same_depth = not pattern.endswith(".*") or name.rpartition(".")[2].isdigit()
    return same_depth and fnmatch.fnmatchcase(name, pattern)


def stays_whole(parameter: Tensor, settings: LearnersConfig) -> bool:
    """Whether every rank keeps all of a parameter."""
    size = parameter.numel() * parameter.element_size()
    return parameter.ndim < 2 or size < settings.whole_parameter_mb * 1e6


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients to at most a norm over all parameters of all ranks; returns the norm.

    `clip_grad_norm_` does not take tensors and DTensors together.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    if not sharded:
        return clip_grad_norm_(parameters, max_norm)
    whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    of_shards = get_total_norm(sharded)
    assert isinstance(of_shards, DTensor)
    norm = torch.linalg.vector_norm(torch.stack([of_shards.full_tensor(), get_total_norm(whole)]))
    factor = float((max_norm / (norm + 1e-6)).clamp(max=1.0))
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def sum_and_clip(parameters: Sequence[Tensor], max_norm: float, ranks: Ranks) -> Tensor:
    """Gradients of all ranks summed, where FSDP has not, and scaled to at most a norm.

    Returns:
        The norm before, over all parameters of all ranks.
    """
    ranks.sum_gradients(p for p in parameters if not isinstance(p, DTensor))
    return clip_gradients(parameters, max_norm)


def held(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def most_held_gb(device: str) -> float:
    """The most that this process has held so far: of its GPU, or resident on CPUs."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
