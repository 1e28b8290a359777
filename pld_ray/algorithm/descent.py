"""One optimiser step: gradients of micro-batches summed, mean over learners, check, clip, step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pld_ray.algorithm.metrics import UpdateMetrics
from pld_ray.algorithm.nonfinite import Batch, LossChecks
from pld_ray.algorithm.optimizers import AllReduce


class Descent:
    """Steps of several optimisers, each on parameters of its own.

    Args:
        parameters: name -> what that loss trains, and nothing else.
        optimizers: name -> the optimiser of these parameters.
        grad_clip_norm: global norm to which a gradient is clipped; 0 does not clip.
        checks: look at each loss and gradient before its step.
        metrics: takes `<name>_loss` and `<name>_grad_norm`.
        all_reduce: averages gradients over several learners, in place; None is a single one.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[nn.Parameter]],
        optimizers: Mapping[str, Optimizer],
        grad_clip_norm: float,
        checks: LossChecks,
        metrics: UpdateMetrics,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self.parameters = {name: list(group) for name, group in parameters.items()}
        self.optimizers = dict(optimizers)
        self.grad_clip_norm = grad_clip_norm
        self.checks, self.metrics, self.all_reduce = checks, metrics, all_reduce
        self._added: dict[str, tuple[list[Tensor], Tensor]] = {}

    def step(self, name: str, loss: Tensor, batch: Batch, update: int) -> None:
        """One step on the parameters of `name` alone, by a whole loss; see `add` and `apply`."""
        self.add(name, loss)
        self.apply(name, batch, update)

    def add(self, name: str, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's part of a loss.

        Args:
            loss: a scalar; it may pass through other networks, which get no gradient.
        """
        parameters = self.parameters[name]
        if name not in self._added:
            for parameter in parameters:  # or the last gradient would stand beside the next
                parameter.grad = None
        # a policy that was made elsewhere has parameters that its actions do not depend on
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if name not in self._added:
            self._added[name] = list(gradients), loss.detach()
            return
        sums, total = self._added[name]
        torch._foreach_add_(sums, gradients)
        self._added[name] = sums, total + loss.detach()

    def apply(self, name: str, batch: Batch, update: int) -> None:
        """One step on the parameters of `name`, by all gradients that were added.

        Args:
            batch: what a loss was computed from, and `update` its number, for what is said of one
                that is not finite.
        """
        parameters = self.parameters[name]
        gradients, loss = self._added.pop(name)
        if self.all_reduce is not None:
            self.all_reduce(gradients)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        self.checks.add(name, loss, norm, batch, update)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self.grad_clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.grad_clip_norm, norm)
        self.optimizers[name].step()
        self.metrics.record(f"{name}_loss", loss)
        self.metrics.record(f"{name}_grad_norm", norm)
