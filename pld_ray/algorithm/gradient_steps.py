"""What the updates of all algorithms are made of: a generator, targets, optimisers, checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pld_ray.algorithm.metrics import UpdateMetrics
from pld_ray.algorithm.nonfinite import Batch, LossChecks
from pld_ray.algorithm.optimizers import AllReduce, target_pairs
from pld_ray.files.random_state import restore_generator
from pld_ray.networks.precision import set_precision


class GradientSteps:
    """Makes updates and keeps figures of them; a subclass says what is drawn, and what a step is.

    A loss that is not finite raises `NonFiniteLossError`. On the CPU every loss is checked before
    its step: the parameters are then those before the bad step. On a GPU, where looking at a value
    waits for the device, 32 losses are checked at once, the last ones at the end of `run`: the
    parameters may be spoilt then, and the caller reloads its last checkpoint. In both cases `run`
    raises before it returns, so nothing spoilt is published.

    Args:
        networks: what is trained.
        optimizers: one per group of `trained`.
        replay: what batches are drawn from.
        params: `LearnerParams`.
        seed: of the update's own generator; the global one is never used.
        trained: name -> the parameters that the loss of this name trains.
        active_share: fraction of action dimensions that carry a residual.
        checks_at_once: losses looked at together, see above; None chooses by device.
        all_reduce: averages gradients over several learners, in place; None is a single one.

    Attributes:
        metrics: of the updates since `run` was called; of each loss `<name>_loss` and
            `<name>_grad_norm`.
    """

    def __init__(
        self,
        networks: Any,
        optimizers: Mapping[str, Optimizer],
        replay: Any,
        params: Any,
        seed: int,
        trained: Mapping[str, Sequence[nn.Parameter]],
        active_share: float = 1.0,
        checks_at_once: int | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self.networks, self.replay, self.params, self.seed = networks, replay, params, seed
        self.targets, self.followed = target_pairs(networks)
        self.device = networks.action_low.device
        set_precision(networks, params.precision, self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        if params.critic_dropout:
            networks.critic.dropout_generator = self.generator
            networks.target_critic.dropout_generator = self.generator
        if params.compile_backend != "none":
            compile_networks(networks, params.compile_backend)
        self.updates = 0
        self.checks = LossChecks(self.device, checks_at_once)
        self.all_reduce = all_reduce
        self.metrics = UpdateMetrics(params.value_range, active_share)
        self.optimizers = dict(optimizers)
        self.trained = {name: list(group) for name, group in trained.items()}
        self._added: dict[str, tuple[list[Tensor], Tensor]] = {}

    def draw(self) -> Any:
        """What the next step learns from."""
        raise NotImplementedError

    def step(self, drawn: Any) -> None:
        """One update of everything that is due."""
        raise NotImplementedError

    def run(self, num_updates: int) -> dict[str, float]:
        """Make `num_updates` updates.

        Returns:
            Means over the call.

        Raises:
            NonFiniteLossError: see the class.
        """
        self.metrics.clear()
        self.checks.clear()
        for _ in range(num_updates):
            self.step(self.draw())
        self.checks.look()
        return self.metrics.means()

    # --- one optimiser step ----------------------------------------------------------------------

    def descend(self, name: str, loss: Tensor, batch: Batch) -> None:
        """One step on the parameters of `name` alone, by a whole loss; see `add` and `apply`."""
        self.add(name, loss)
        self.apply(name, batch)

    def add(self, name: str, loss: Tensor) -> None:
        """Add the gradient of a micro-batch's part of a loss.

        Args:
            loss: a scalar; it may pass through other networks, which get no gradient.
        """
        parameters = self.trained[name]
        if name not in self._added:
            for parameter in parameters:  # or the last gradient would stand beside the next
                parameter.grad = None
        # a policy that was made elsewhere has parameters that its actions do not depend on
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        if name not in self._added:
            self._added[name] = in_own_memory(gradients, parameters), loss.detach()
            return
        sums, total = self._added[name]
        torch._foreach_add_(sums, gradients)
        self._added[name] = sums, total + loss.detach()

    def apply(self, name: str, batch: Batch) -> None:
        """One step on the parameters of `name`, by all gradients that were added: their mean over
        learners, checked and clipped.

        Args:
            batch: what a loss was computed from, for what is said of one that is not finite.
        """
        parameters = self.trained[name]
        gradients, loss = self._added.pop(name)
        if self.all_reduce is not None:
            self.all_reduce(gradients)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        self.checks.add(name, loss, norm, batch, self.updates)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self.params.grad_clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.params.grad_clip_norm, norm)
        self.optimizers[name].step()
        self.metrics.record(f"{name}_loss", loss)
        self.metrics.record(f"{name}_grad_norm", norm)

    def update_target(self) -> None:
        """(15): psi_bar <- (1 - tau) psi_bar + tau psi."""
        with torch.no_grad():
            torch._foreach_lerp_(self.targets, self.followed, self.params.tau)

    def noise(self, *shape: int) -> Tensor:
        """Standard normal draws of the update's generator."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """Generator and counter; networks and optimisers are saved by their owner."""
        return {"updates": self.updates, "generator": self.generator.get_state().numpy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.updates = int(state["updates"])
        saved = torch.from_numpy(np.array(state["generator"], dtype=np.uint8))
        restore_generator(self.generator, saved)


def in_own_memory(gradients: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that may be changed in place, each laid out as its parameter.

    Autograd gives two parameters that were added one tensor, those that were joined parts of one,
    and the elements of a sum one number; a GPU's fused step refuses another layout.
    """
    owned: list[Tensor] = []
    taken: set[int] = set()
    for gradient, parameter in zip(gradients, parameters, strict=True):
        shared = gradient.untyped_storage().data_ptr() in taken
        if shared or gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter).copy_(gradient)
        taken.add(gradient.untyped_storage().data_ptr())
        owned.append(gradient)
    return owned


def compile_networks(networks: Any, backend: str) -> None:
    """Compile what critics and actor compute; parameters and their names stay as they are.

    Args:
        networks: `ResidualNetworks`, or an object with its attributes; changed in place.
        backend: of torch.compile.
    """
    networks.actor.compile(backend=backend)
    for critic in (networks.critic, networks.target_critic):
        critic.outputs = torch.compile(critic.outputs, backend=backend)
        critic.otf_outputs = torch.compile(critic.otf_outputs, backend=backend)
