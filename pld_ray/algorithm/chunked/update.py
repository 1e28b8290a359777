"""Q-chunking, one gradient step after the other, in plain PyTorch.

    update_critic -> update_actor -> (update_one_step) -> update_target -> update_average

The equations are in `losses.py`; here is the order in which they are applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from pld_ray.algorithm import categorical
from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.actor import DistilledActor
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import target_pairs, trained_parameters
from pld_ray.algorithm.compiled import compile_networks
from pld_ray.algorithm.descent import Descent
from pld_ray.algorithm.ensemble import draw_members, weighting_loss
from pld_ray.algorithm.metrics import UpdateMetrics
from pld_ray.algorithm.nonfinite import Batch, LossChecks
from pld_ray.algorithm.optimizers import AllReduce
from pld_ray.config.acrlpd import ACRLPDParams

BPTT_DRAWS = 4
"""Chunks of which `bptt` climbs the best."""


class WindowReplay(Protocol):
    """What the update needs of a replay."""

    def sample_windows(
        self,
        batch_size: int,
        horizon: int,
        gamma: float,
        positive_share: float,
        tail: str,
        n_step: int,
    ) -> Batch: ...


class ChunkedUpdate:
    """Gradient steps of Q-chunking; a loss that is not finite raises `NonFiniteLossError`.

    Args:
        networks: what is trained.
        optimizers: one per group of `trained_parameters`; see `make_optimizers`.
        replay: `SymmetricReplay` of two `ChunkRing`s, or anything with its `sample_windows`.
        params: see `ACRLPDParams`.
        seed: of the update's own generator; the global one is never used.
        checks_at_once: losses looked at together, see `LossChecks`; None chooses by device.
        all_reduce: averages over several learners, in place; None is a single one.
    """

    def __init__(
        self,
        networks: ChunkedNetworks,
        optimizers: Mapping[str, Optimizer],
        replay: WindowReplay,
        params: ACRLPDParams,
        seed: int = 0,
        checks_at_once: int | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self.networks, self.replay, self.params = networks, replay, params
        self.device = networks.action_low.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        if params.critic_dropout:
            networks.critic.dropout_generator = self.generator
            networks.target_critic.dropout_generator = self.generator
        if params.compile_backend != "none":
            compile_networks(networks, params.compile_backend)
        self.targets, self.followed = target_pairs(networks)
        both = zip(networks.ema_actor.parameters(), networks.actor.parameters(), strict=True)
        self.average, self.averaged = self.trained_pairs(both)
        self.updates = 0
        self.all_reduce = all_reduce
        self.checks = LossChecks(self.device, checks_at_once)
        low, high = params.value_range
        self.metrics = UpdateMetrics((low, high), active_share=1.0)
        self.optimizers = dict(optimizers)
        self.descent = Descent(
            trained_parameters(networks),
            optimizers,
            params.grad_clip_norm,
            self.checks,
            self.metrics,
            all_reduce,
        )

    # --- the algorithm ---------------------------------------------------------------------------

    def run(self, num_updates: int) -> dict[str, float]:
        """Make `num_updates` updates.

        Returns:
            Means over the call: critic_loss, critic_grad_norm, td_target_mean, q_mean, q_max,
            q_out_of_bound, flow_loss, flow_grad_norm (of a Gaussian gaussian_loss, ...),
            positive_share (of windows cloned); where a loss climbs Q q_policy; with `distill`
            one_step_loss, one_step_grad_norm; with a temperature that, its loss and entropy.

        Raises:
            NonFiniteLossError: see the class.
        """
        self.metrics.clear()
        self.checks.clear()
        for _ in range(num_updates):
            self.step(self.sample())
        self.checks.look()
        return self.metrics.means()

    def sample(self) -> Batch:
        """Windows of the replay, their actions in [-1, 1]; steps past the end are 0.

        Images of a trained encoder are shifted (DrQ).
        """
        params = self.params
        batch = self.replay.sample_windows(
            params.batch_size,
            params.horizon,
            params.gamma,
            params.positive_share,
            params.tail,
            params.n_step,
        )
        self.networks.shift_images(batch, self.generator)
        batch["actions"] = self.networks.to_unit(batch["actions"]) * batch["valid"].unsqueeze(-1)
        return batch

    def step(self, batch: Batch) -> None:
        """One update of everything."""
        networks = self.networks
        seen = networks.seen(batch)
        observation = networks.actor.observe(*seen)
        x = networks.critic_encoder(*seen, networks.actor.features(observation))
        self.update_critic(batch, x)
        x = x.detach()
        self.update_actor(batch, observation, x)
        if isinstance(networks.actor, DistilledActor):
            self.update_one_step(batch, observation.detach(), x)
        self.update_target()
        self.update_average()
        self.updates += 1

    def update_critic(self, batch: Batch, x: Tensor) -> None:
        """L_C: regress every critic onto the target."""
        networks, critic = self.networks, self.networks.critic
        with torch.no_grad():
            target, distribution = self.td_target(batch)
        weights = self.window_weights(batch)
        total = self.total(weights)
        outputs = networks.outputs(critic, x, batch["actions"])
        q = critic.value(outputs.detach())
        if distribution is None:
            loss = losses.critic_loss(outputs, target, weights, total)
        else:
            loss = losses.categorical_loss(outputs, distribution, weights, total)
        if critic.reduction_logits is not None:
            loss = loss + weighting_loss(q, target, critic.reduction_logits)
        self.descent.step("critic", self.params.critic_weight * loss, batch, self.updates)
        self.metrics.record("q", q)
        self.metrics.record("td_target", target)

    def td_target(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """y [B], and of categorical critics its distribution [B, Z].

        a' is one draw of the policy, or the best of N' draws by the online critics; the target
        critics evaluate it.
        """
        networks, params = self.networks, self.params
        seen = networks.seen(batch, successor=True)
        observation = networks.actor.observe(*seen)
        features = networks.actor.features(observation)
        x = networks.critic_encoder(*seen, features)
        noise = self.noise(params.target_draws, len(x), *networks.actor.noise_shape)
        chunk = networks.choose(x, networks.actor.sample(observation, noise))
        members = draw_members(params.num_critics, params.num_subsample_critics, self.generator)
        critic = networks.target_critic
        target_x = networks.target_encoder(*seen, features)
        outputs = networks.outputs(critic, target_x, chunk, members)
        logits: Tensor | None = critic.reduction_logits
        if logits is not None and members is not None:
            logits = logits[members]
        reward, discount, reduction = batch["reward"], batch["discount"], params.target_reduction
        if critic.num_atoms == 1:
            return losses.td_target(reward, discount, outputs, reduction, logits), None
        none = torch.zeros_like(reward)
        probability, _ = categorical.choose_distribution(
            outputs.unsqueeze(1), critic.atoms, none.unsqueeze(0), 0.0, reduction, False, logits
        )
        distribution = categorical.project(probability, reward, discount, critic.atoms)
        return distribution @ critic.atoms, distribution

    def update_actor(self, batch: Batch, observation: Any, x: Tensor) -> None:
        """L_BC: clone what may be cloned; and L_A of `bptt` and `sac`: climb the online critics."""
        chunks, weights = batch["actions"], self.cloning_weights(batch)
        uniform = torch.rand(len(chunks), generator=self.generator, device=self.device)
        loss = self.networks.actor.bc_loss(
            observation,
            chunks,
            weights,
            self.noise(len(chunks), *self.networks.actor.noise_shape),
            losses.flow_time(uniform),
            self.total(weights),
        )
        loss = self.params.bc_weight * loss
        log_prob = None
        if self.params.improvement in ("bptt", "sac"):
            climbing, log_prob = self.climb(observation, x)
            loss = loss + self.params.actor_weight * climbing
        self.descent.step(self.networks.actor.kind, loss, batch, self.updates)
        self.metrics.record("positive_share", weights.amax(1).mean())
        if log_prob is not None and self.networks.log_alpha is not None:
            self.update_temperature(batch, log_prob)

    def climb(self, observation: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """L_A of `bptt`, through the flow's steps; or of `sac`, with the chunks' log pi [B]."""
        networks, critic = self.networks, self.networks.critic
        logits = None if critic.reduction_logits is None else critic.reduction_logits.detach()
        reduction = self.params.actor_reduction
        if self.params.improvement == "bptt":
            noise = self.noise(BPTT_DRAWS, len(x), *networks.actor.noise_shape)
            q = networks.judge(x, networks.actor.sample(observation, noise))
            self.metrics.record("q_policy", q.detach())
            return losses.climbing_loss(q, reduction, logits), None
        chunks, log_prob = networks.actor.draw(observation, self.noise(len(x), *self.chunk_shape))
        q = critic.value(networks.outputs(critic, x, chunks))
        self.metrics.record("q_policy", q.detach())
        alpha = (
            networks.log_alpha.detach().exp() if networks.log_alpha is not None else q.new_zeros(1)
        )
        return losses.sac_loss(log_prob, q, alpha, reduction, logits), log_prob

    def update_temperature(self, batch: Batch, log_prob: Tensor) -> None:
        """Move the entropy of chunks towards `target_entropy`."""
        log_alpha = self.networks.log_alpha
        assert log_alpha is not None
        target = self.params.target_entropy
        target = -0.5 * math.prod(self.chunk_shape) if target is None else target
        loss = losses.temperature_loss(log_alpha, log_prob, target)
        self.descent.step("temperature", loss, batch, self.updates)
        self.metrics.record("temperature", log_alpha.detach().exp())
        self.metrics.record("entropy", -log_prob.detach().mean())

    def update_one_step(self, batch: Batch, observation: Tensor, x: Tensor) -> None:
        """L_A of `distill`: follow the flow, and climb the online critics."""
        networks, params = self.networks, self.params
        actor, critic = networks.actor, networks.critic
        assert isinstance(actor, DistilledActor)
        noise = self.noise(*batch["actions"].shape)
        with torch.no_grad():
            flow_chunks = actor.flow.sample(observation, noise)
        chunks = actor.propose(observation, noise)
        q = critic.value(networks.outputs(critic, x, chunks.clamp(-1.0, 1.0)))
        logits = critic.reduction_logits
        loss = losses.distill_loss(
            chunks,
            flow_chunks,
            q,
            params.distill_alpha,
            params.actor_reduction,
            None if logits is None else logits.detach(),
        )
        self.descent.step("one_step", params.actor_weight * loss, batch, self.updates)
        self.metrics.record("q_policy", q.detach())

    def update_target(self) -> None:
        """phi_bar <- (1 - tau) phi_bar + tau phi."""
        with torch.no_grad():
            torch._foreach_lerp_(self.targets, self.followed, self.params.tau)

    def update_average(self) -> None:
        """theta_bar <- beta theta_bar + (1 - beta) theta."""
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.averaged, 1.0 - self.params.ema_decay)

    # --- pieces of it ----------------------------------------------------------------------------

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """H, A."""
        return self.params.horizon, self.networks.action_dim

    @staticmethod
    def trained_pairs(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        """Averages and what they are of, without what is never trained."""
        kept = [(average, of) for average, of in pairs if average is not of]
        return [average for average, _ in kept], [of for _, of in kept]

    def window_weights(self, batch: Batch) -> Tensor:
        """w_b: 1 for the windows that train the critics, [B]."""
        valid = batch["valid"]
        return (valid[:, -1] if self.params.tail == "drop" else valid[:, 0]).float()

    def cloning_weights(self, batch: Batch) -> Tensor:
        """valid * positive of the flow's loss, [B, H]; `bc_episodes=all` clones every window."""
        valid = batch["valid"].float()
        if self.params.bc_episodes == "all":
            return valid
        return valid * batch["positive"].unsqueeze(1)

    def total(self, weights: Tensor) -> Tensor:
        """sum(w), of several learners the mean of theirs: their gradients are averaged too."""
        total = weights.sum()
        if self.all_reduce is not None:
            self.all_reduce([total])
        return total

    def noise(self, *shape: int) -> Tensor:
        """Standard normal draws."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Generator and counter; networks and optimisers are saved by their owner."""
        return {"updates": self.updates, "generator": self.generator.get_state().numpy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.updates = int(state["updates"])
        generator = torch.from_numpy(np.array(state["generator"], dtype=np.uint8))
        self.generator.set_state(generator)
