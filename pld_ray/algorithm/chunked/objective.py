"""The losses of Q-chunking for one micro-batch, with what they draw.

The equations are in `losses.py`, the order in which they are applied is in `update.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pld_ray.algorithm import categorical
from pld_ray.algorithm.chunked import losses
from pld_ray.algorithm.chunked.micro_batches import MicroBatch
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.ensemble import draw_members, weighting_loss
from pld_ray.algorithm.gradient_steps import GradientSteps
from pld_ray.algorithm.nonfinite import Batch
from pld_ray.config.acrlpd import ACRLPDParams

BPTT_DRAWS = 4
"""Chunks of which `bptt` climbs the best."""


class ChunkedObjective(GradientSteps):
    """From a micro-batch to the scalars that are descended; figures of it go to the metrics.

    A masked mean is divided by the weights of the whole update; L_A and what else is a plain mean
    is the micro-batch's own, of which it has the `share`.
    """

    networks: ChunkedNetworks
    params: ACRLPDParams

    def critic_loss(self, part: MicroBatch, weights: Tensor, total: Tensor) -> Tensor:
        """L_C of a micro-batch, [B] weights of `total` in all."""
        networks, critic, batch = self.networks, self.networks.critic, part.batch
        with torch.no_grad():
            target, distribution = self.td_target(batch)
        outputs = networks.outputs(critic, part.features, batch["actions"])
        q = critic.value(outputs.detach())
        if distribution is None:
            loss = losses.critic_loss(outputs, target, weights, total)
        else:
            loss = losses.categorical_loss(outputs, distribution, weights, total)
        if critic.reduction_logits is not None:
            loss = loss + part.share * weighting_loss(q, target, critic.reduction_logits)
        self.record(part, "q", q)
        self.record(part, "td_target", target)
        return loss

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
        logits = critic.logits_of(members)
        reward, discount, reduction = batch["reward"], batch["discount"], params.target_reduction
        if critic.num_atoms == 1:
            return losses.td_target(reward, discount, outputs, reduction, logits), None
        none = torch.zeros_like(reward)
        probability, _ = categorical.choose_distribution(
            outputs.unsqueeze(1), critic.atoms, none.unsqueeze(0), 0.0, reduction, False, logits
        )
        distribution = categorical.target_distribution(
            probability, reward, discount, critic.atoms, params.critic_smoothing
        )
        return distribution @ critic.atoms, distribution

    def bc_loss(self, part: MicroBatch, weights: Tensor, total: Tensor) -> Tensor:
        """L_BC of a micro-batch, [B, H] weights of `total` in all."""
        actor, chunks = self.networks.actor, part.batch["actions"]
        uniform = torch.rand(len(chunks), generator=self.generator, device=self.device)
        noise = self.noise(len(chunks), *actor.noise_shape)
        time = losses.flow_time(uniform)
        return actor.bc_loss(part.observation, chunks, weights, noise, time, total)

    def climb(self, part: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """L_A of `bptt`, through the flow's steps; or of `sac`, with the chunks' log pi [B]."""
        networks, critic = self.networks, self.networks.critic
        observation, x = part.observation, part.features
        logits = critic.fixed_logits()
        reduction = self.params.actor_reduction
        if self.params.improvement == "bptt":
            noise = self.noise(BPTT_DRAWS, len(x), *networks.actor.noise_shape)
            q = networks.judge(x, networks.actor.sample(observation, noise))
            self.record(part, "q_policy", q.detach())
            return losses.climbing_loss(q, reduction, logits), None
        noise = self.noise(len(x), *self.chunk_shape)
        chunks, log_prob = networks.actor.draw(observation, noise, networks.moved)
        q = critic.value(networks.outputs(critic, x, chunks))
        self.record(part, "q_policy", q.detach())
        alpha = (
            networks.log_alpha.detach().exp() if networks.log_alpha is not None else q.new_zeros(1)
        )
        return losses.sac_loss(log_prob, q, alpha, reduction, logits), log_prob

    def temperature_loss(self, part: MicroBatch, log_prob: Tensor) -> Tensor:
        """Moves the entropy of chunks towards `target_entropy`."""
        target: float | Tensor | None = self.params.target_entropy
        if target is None:
            target = -0.5 * self.params.horizon * self.networks.moved.sum()
        self.record(part, "entropy", -log_prob.detach().mean())
        assert self.networks.log_alpha is not None
        return losses.temperature_loss(self.networks.log_alpha, log_prob, target)

    def distill_loss(self, part: MicroBatch) -> Tensor:
        """L_A of `distill` of a micro-batch."""
        actor, critic, observation = self.networks.actor, self.networks.critic, part.observation
        noise = self.noise(*part.batch["actions"].shape)
        with torch.no_grad():
            flow_chunks = actor.flow.sample(observation, noise)
        chunks = actor.propose(observation, noise)
        clipped = chunks.clamp(-1.0, 1.0)
        q = critic.value(self.networks.outputs(critic, part.features, clipped))
        self.record(part, "q_policy", q.detach())
        logits = critic.fixed_logits()
        reduction, alpha = self.params.actor_reduction, self.params.distill_alpha
        return losses.distill_loss(chunks, flow_chunks, q, alpha, reduction, logits)

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """H, A."""
        return self.params.horizon, self.networks.action_dim

    def record(self, part: MicroBatch, name: str, value: Tensor) -> None:
        """A figure of a micro-batch that counts."""
        if part.share:
            self.metrics.record(name, value)
