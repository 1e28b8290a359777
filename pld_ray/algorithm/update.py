"""Residual SAC, one gradient step after the other, in plain PyTorch.

    update_critic -> update_actor -> update_temperature -> update_target

The equations are in `losses.py`; here is the order in which they are applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pld_ray.algorithm import losses
from pld_ray.algorithm.figures import UpdateFigures
from pld_ray.algorithm.params import ResidualSACParams

Batch = dict[str, Tensor]
CHECKS_AT_ONCE_ON_GPU = 32  # a check there waits for the device


class Replay(Protocol):
    """What the update needs of a replay."""

    def sample(self, batch_size: int, n_step: int, gamma: float) -> Batch: ...


class NonFiniteLossError(RuntimeError):
    """A loss or a gradient is NaN or infinite.

    Attributes:
        name: `critic_loss`, `actor_loss`, `temperature_loss`, or `critic_grad_norm` and so on where
            the loss was finite and its gradient was not.
        batch: the sampled batch it was computed from, before normalisation.
        step: number of the update, counted from 0 over the whole run.
    """

    def __init__(self, name: str, batch: Batch, step: int) -> None:
        self.name = name
        self.batch = batch
        self.step = step
        bad = [key for key, t in batch.items() if t.is_floating_point() and not t.isfinite().all()]
        cause = (
            f"non-finite in the batch: {', '.join(bad)}" if bad else "the batch itself is finite"
        )
        super().__init__(f"{name} is not finite at update {step}; {cause}")


def make_optimizers(networks: Any, params: ResidualSACParams) -> dict[str, Optimizer]:
    """Fused Adam (AdamW with weight decay) for `critic`, `actor` and `temperature`."""

    def adam(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> Optimizer:
        return torch.optim.AdamW(list(parameters), lr, weight_decay=weight_decay, fused=True)

    return {
        "critic": adam(networks.critic.parameters(), params.critic_lr, params.weight_decay),
        "actor": adam(networks.actor.parameters(), params.actor_lr, params.weight_decay),
        "temperature": adam([networks.log_alpha], params.temperature_lr, 0.0),
    }


class ResidualSACUpdate:
    """Gradient steps of residual SAC on an object's networks.

    A loss that is not finite raises `NonFiniteLossError`. On the CPU every loss is checked before
    its step: the parameters are then those before the bad step. On a GPU, where looking at a value
    waits for the device, 32 losses are checked at once, the last ones at the end of `run`: the
    parameters may be spoilt then, and the caller reloads its last checkpoint. In both cases `run`
    raises before it returns, so nothing spoilt is published.

    Args:
        networks: has actor, critic, target_critic, log_alpha, normalizer, residual_scale,
            residual_dims, as `ResidualNetworks`; action_low and action_high [A] where the action
            bounds are not +-1.
        optimizers: `critic`, `actor`, `temperature`; see `make_optimizers`.
        replay: `FrameRing`, `SymmetricReplay`, or anything with their `sample`.
        params: see `ResidualSACParams`.
        seed: of the update's own generator; the global one is never used.
        q_bounds: lowest and highest return that the reward allows; Q outside counts as
            `q_out_of_bound`.
        checks_at_once: losses looked at together, see above; None chooses by device.
    """

    def __init__(
        self,
        networks: Any,
        optimizers: Mapping[str, Optimizer],
        replay: Replay,
        params: ResidualSACParams,
        seed: int = 0,
        q_bounds: tuple[float, float] = (0.0, 1.0),
        checks_at_once: int | None = None,
    ) -> None:
        self.networks = networks
        self.optimizers = dict(optimizers)
        self.replay = replay
        self.params = params
        self.parameters = {
            "critic": list(networks.critic.parameters()),
            "actor": list(networks.actor.parameters()),
            "temperature": [networks.log_alpha],
            "target": list(networks.target_critic.parameters()),
        }
        self.action_low = getattr(networks, "action_low", -1.0)
        self.action_high = getattr(networks, "action_high", 1.0)
        self.device = networks.log_alpha.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.target_entropy = self._entropy_target()
        self.updates = 0
        if checks_at_once is None:
            checks_at_once = 1 if self.device.type == "cpu" else CHECKS_AT_ONCE_ON_GPU
        self.checks_at_once = checks_at_once
        self._unchecked: list[tuple[str, Tensor, Tensor, Batch, int]] = []
        active_share = float(losses.active(networks.residual_dims).mean())
        self.figures = UpdateFigures(q_bounds, active_share)

    # --- the algorithm ---------------------------------------------------------------------------

    def run(self, num_updates: int) -> dict[str, float]:
        """Make `num_updates` critic steps, with an actor step at each `critic_actor_update_ratio`.

        Returns:
            Means over the call: critic_loss, critic_grad_norm, td_target_mean, and of Q at the
            batch's actions q_mean, q_max and q_out_of_bound; where actor steps fell into it,
            actor_loss, actor_grad_norm, q_policy, entropy (nats, of the residual), residual_abs
            (over the dimensions that carry one), temperature_loss, temperature_grad_norm, alpha.

        Raises:
            NonFiniteLossError: see the class.
        """
        params = self.params
        self.figures.clear()
        self._unchecked = []
        self.target_entropy = self._entropy_target()
        for _ in range(num_updates):
            self.step(self.replay.sample(params.batch_size, params.n_step, params.gamma))
        self._check_pending()
        return self.figures.means()

    def step(self, batch: Batch) -> None:
        """One critic step, the actor and temperature steps if they are due, and the target."""
        x = self.networks.normalizer(batch["observation"])
        self.update_critic(batch, x)
        due = (self.updates + 1) % self.params.critic_actor_update_ratio == 0
        if due and self.updates >= self.params.actor_delay_updates:
            log_prob = self.update_actor(batch, x)
            self.update_temperature(batch, log_prob)
        self.update_target()
        self.updates += 1

    def update_critic(self, batch: Batch, x: Tensor) -> None:
        """(8)-(14): regress every critic onto the on-the-fly target."""
        networks, params = self.networks, self.params
        with torch.no_grad():
            next_x = networks.normalizer(batch["next_observation"])
            next_base = batch["next_base_action"]
            next_delta, next_log_prob = self._residual(next_x, next_base, params.otf_candidates)
            next_actions = self._compose(next_base, next_delta)
            members = losses.draw_members(
                params.num_critics, params.num_subsample_critics, self.generator
            )
            target = losses.td_target(
                batch["reward"],
                batch["discount"],
                networks.target_critic.otf(next_x, next_base, next_actions, members),
                next_log_prob,
                networks.log_alpha.exp(),
                params.target_reduction,
                params.backup_entropy,
            )
        q = networks.critic(x, batch["base_action"], batch["action"])
        loss = losses.critic_loss(q, target)
        self._descend("critic", loss, batch)
        self.figures.record("q", q.detach())
        self.figures.record("td_target", target)

    def update_actor(self, batch: Batch, x: Tensor) -> Tensor:
        """(16), (17): returns log pi(delta | x) [B], without gradient."""
        networks, params = self.networks, self.params
        base_action = batch["base_action"]
        delta, log_prob = self._residual(x, base_action, num_candidates=1)
        action = self._compose(base_action, delta)
        q = networks.critic.otf(x, base_action, action).squeeze(1)
        loss = losses.actor_loss(
            q,
            log_prob[0],
            delta[0],
            networks.log_alpha.detach().exp(),
            params.actor_reduction,
            params.residual_penalty,
        )
        self._descend("actor", loss, batch)
        log_prob = log_prob[0].detach()
        self.figures.record("q_policy", q.detach())
        self.figures.record("log_prob", log_prob)
        self.figures.record("delta", delta.detach())
        return log_prob

    def update_temperature(self, batch: Batch, log_prob: Tensor) -> None:
        """(18), (19), with log alpha kept above its floor."""
        log_alpha = self.networks.log_alpha
        loss = losses.temperature_loss(log_alpha, log_prob, self.target_entropy)
        self._descend("temperature", loss, batch)
        with torch.no_grad():
            log_alpha.clamp_(min=self.params.log_alpha_min)
            self.figures.record("alpha", log_alpha.exp())

    def update_target(self) -> None:
        """(15): psi_bar <- (1 - tau) psi_bar + tau psi."""
        with torch.no_grad():
            torch._foreach_lerp_(
                self.parameters["target"], self.parameters["critic"], self.params.tau
            )

    # --- pieces of it ----------------------------------------------------------------------------

    def _residual(
        self, x: Tensor, base_action: Tensor, num_candidates: int
    ) -> tuple[Tensor, Tensor]:
        """(2), (8): delta [K, B, A] and its log-probability [K, B]."""
        mean, log_std = self.networks.actor(x, base_action)
        noise = torch.randn(
            (num_candidates, *mean.shape), generator=self.generator, device=self.device
        )
        return losses.sample_residual(mean, log_std, noise, self.networks.residual_dims)

    def _entropy_target(self) -> Tensor:
        """H_tgt for the beta in force; beta changes between runs, not within one."""
        return losses.entropy_target(
            self.networks.residual_dims,
            self.params.target_entropy,
            self.networks.residual_scale,
            self.params.scale_entropy_target,
        )

    def _compose(self, base_action: Tensor, delta: Tensor) -> Tensor:
        networks = self.networks
        return losses.compose_action(
            base_action,
            delta,
            networks.residual_scale,
            networks.residual_dims,
            self.action_low,
            self.action_high,
        )

    def _descend(self, name: str, loss: Tensor, batch: Batch) -> None:
        """One optimiser step on the parameters of `name` alone, checked and clipped."""
        parameters = self.parameters[name]
        # the actor's loss passes through the critics without leaving a gradient on them
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        self._check(name, loss.detach(), norm, batch)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if self.params.grad_clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.params.grad_clip_norm, norm)
        self.optimizers[name].step()
        self.figures.record(f"{name}_loss", loss.detach())
        self.figures.record(f"{name}_grad_norm", norm)

    def _check(self, name: str, loss: Tensor, norm: Tensor, batch: Batch) -> None:
        self._unchecked.append((name, loss, norm, batch, self.updates))
        if len(self._unchecked) >= self.checks_at_once:
            self._check_pending()

    def _check_pending(self) -> None:
        """Look at the losses and gradient norms kept since the last check."""
        pending, self._unchecked = self._unchecked, []
        if not pending:
            return
        values = torch.stack([value for entry in pending for value in entry[1:3]]).tolist()
        for index, (name, _, _, batch, step) in enumerate(pending):
            for value, kind in zip(values[2 * index :], ("loss", "grad_norm"), strict=False):
                if not math.isfinite(value):
                    raise NonFiniteLossError(f"{name}_{kind}", batch, step)

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Generator and counter; networks and optimisers are saved by their owner."""
        return {"updates": self.updates, "generator": self.generator.get_state().numpy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.updates = int(state["updates"])
        generator = torch.from_numpy(np.array(state["generator"], dtype=np.uint8))
        self.generator.set_state(generator)
