"""Q-chunking, one gradient step after the other, in plain PyTorch.

    update_critic -> update_actor -> (update_one_step) -> update_target -> update_average

The equations are in `losses.py`; here is the order in which they are applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from pld_ray.algorithm.chunked.actor import DistilledActor
from pld_ray.algorithm.chunked.micro_batches import Dealing, MicroBatch, mixed_seed
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.objective import ChunkedObjective
from pld_ray.algorithm.chunked.optimizers import trained_parameters
from pld_ray.algorithm.nonfinite import Batch
from pld_ray.algorithm.optimizers import AllReduce
from pld_ray.config.acrlpd import ACRLPDParams

DRAWS = ("windows", "critic", "actor", "one_step")
"""What draws are for, in the order in which an update makes them."""


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
        turn: int = 0,
    ) -> Batch: ...

    def seed(self, seed: int) -> None: ...


class ChunkedUpdate(ChunkedObjective):
    """Gradient steps of Q-chunking; a loss that is not finite raises `NonFiniteLossError`.

    With `accumulation` K a batch is made of K micro-batches, whose gradients are summed before an
    optimiser makes its step: masked means are over all of them, and so are the halves and the
    least share of positive windows.

    Args:
        networks: what is trained.
        optimizers: one per group of `trained_parameters`; see `make_optimizers`.
        replay: `SymmetricReplay` of two `ChunkRing`s, or anything with its `sample_windows`.
        params: see `ACRLPDParams`.
        seed: of the update's own generator; the global one is never used.
        all_reduce: averages over several learners, in place; None is a single one.
        dealing: which micro-batches are computed here; None is all.
    """

    def __init__(
        self,
        networks: ChunkedNetworks,
        optimizers: Mapping[str, Optimizer],
        replay: WindowReplay,
        params: ACRLPDParams,
        seed: int = 0,
        all_reduce: AllReduce | None = None,
        dealing: Dealing | None = None,
    ) -> None:
        trained = trained_parameters(networks)
        super().__init__(networks, optimizers, replay, params, seed, trained, all_reduce=all_reduce)
        self.dealing = dealing or Dealing.alone(params.accumulation)
        both = zip(networks.ema_actor.parameters(), networks.actor.parameters(), strict=True)
        self.average, self.averaged = self.trained_pairs(both)

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
        return super().run(num_updates)

    def draw(self) -> list[MicroBatch]:
        """Those of the next update that are computed here."""
        parts = self.dealing.parts
        return [
            MicroBatch(self.sample(turn), turn, 1.0 / parts if turn < parts else 0.0)
            for turn in self.dealing.turns
        ]

    def sample(self, number: int = 0) -> Batch:
        """Windows of the replay, their actions in [-1, 1]; steps past the end are 0.

        Images of a trained encoder are shifted (DrQ).

        Args:
            number: of the micro-batch in its update.
        """
        params = self.params
        self.draw_for(number, "windows")
        batch = self.replay.sample_windows(
            params.batch_size // self.dealing.parts,
            params.horizon,
            params.gamma,
            params.positive_share,
            params.tail,
            params.n_step,
            number,
        )
        batch = {name: column.to(self.device) for name, column in batch.items()}
        self.networks.shift_images(batch, self.generator)
        batch["actions"] = self.networks.to_unit(batch["actions"]) * batch["valid"].unsqueeze(-1)
        return batch

    def step(self, parts: Sequence[MicroBatch]) -> None:
        """One update of everything."""
        self.update_critic(parts)
        self.update_actor(parts)
        if isinstance(self.networks.actor, DistilledActor):
            self.update_one_step(parts)
        self.update_target()
        self.update_average()
        self.updates += 1

    def observe(self, part: MicroBatch, keeps: bool = True) -> None:
        """What actor and critics make of a micro-batch.

        Args:
            keeps: what the actor made of it, with its graph, serves its losses too.
        """
        networks = self.networks
        seen = networks.seen(part.batch)
        with torch.set_grad_enabled(keeps):
            observation = networks.actor.observe(*seen)
            features = networks.actor.features(observation)
        part.observation = observation if keeps else None
        part.x = networks.critic_encoder(*seen, features)

    def update_critic(self, parts: Sequence[MicroBatch]) -> None:
        """L_C: regress every critic onto the target."""
        weights = [part.counted(self.window_weights(part.batch)) for part in parts]
        total = self.total(weights)
        for part, weight in zip(parts, weights, strict=True):
            self.draw_for(part.number, "critic")
            self.observe(part, keeps=len(parts) == 1)
            loss = self.critic_loss(part, weight, total)
            self.add("critic", self.params.critic_weight * loss)
            part.x = part.features.detach()
        self.apply("critic", parts[0].batch)

    def update_actor(self, parts: Sequence[MicroBatch]) -> None:
        """L_BC: clone what may be cloned; and L_A of `bptt` and `sac`: climb the online critics."""
        networks, params = self.networks, self.params
        weights = [part.counted(self.cloning_weights(part.batch)) for part in parts]
        total = self.total(weights)
        for part, weight in zip(parts, weights, strict=True):
            self.draw_for(part.number, "actor")
            if part.observation is None:
                part.observation = networks.actor.observe(*networks.seen(part.batch))
            loss = params.bc_weight * self.bc_loss(part, weight, total)
            log_prob = None
            if params.improvement in ("bptt", "sac"):
                climbing, log_prob = self.climb(part)
                loss = loss + params.actor_weight * part.share * climbing
            self.add(networks.actor.kind, loss)
            self.record(part, "positive_share", weight.amax(1).mean())
            if log_prob is not None and networks.log_alpha is not None:
                self.add("temperature", part.share * self.temperature_loss(part, log_prob))
            kept = isinstance(part.observation, Tensor)
            part.observation = part.observation.detach() if kept else None
        self.apply(networks.actor.kind, parts[0].batch)
        if networks.log_alpha is not None:
            self.apply("temperature", parts[0].batch)
            self.metrics.record("temperature", networks.log_alpha.detach().exp())

    def update_one_step(self, parts: Sequence[MicroBatch]) -> None:
        """L_A of `distill`: follow the flow, and climb the online critics."""
        for part in parts:
            self.draw_for(part.number, "one_step")
            loss = self.params.actor_weight * part.share * self.distill_loss(part)
            self.add("one_step", loss)
        self.apply("one_step", parts[0].batch)

    def update_average(self) -> None:
        """theta_bar <- beta theta_bar + (1 - beta) theta."""
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.averaged, 1.0 - self.params.ema_decay)

    # --- pieces of it ----------------------------------------------------------------------------

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

    def total(self, weights: Sequence[Tensor]) -> Tensor:
        """sum(w) over micro-batches; of several learners the mean of theirs, as of gradients."""
        total = reduce(torch.add, [weight.sum() for weight in weights])
        if self.all_reduce is not None:
            self.all_reduce([total])
        return total

    def draw_for(self, number: int, what: str) -> None:
        """What is drawn next is for this micro-batch."""
        if self.dealing.numbered:
            seed = mixed_seed(self.seed, self.updates, number, DRAWS.index(what))
            self.generator.manual_seed(seed)
            if what == "windows":
                self.replay.seed(seed)
