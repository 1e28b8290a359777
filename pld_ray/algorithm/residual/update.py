"""Residual SAC, one gradient step after the other, in plain PyTorch.

    update_critic -> (update_discrete_critic) -> update_actor -> update_temperature -> update_target
    imitate                                                      (actor_loss=hg_dagger)

The equations are in `losses.py` (`categorical.py`, `hybrid.py`); here is the order in which they
are applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from pld_ray.algorithm import categorical, ensemble
from pld_ray.algorithm.gradient_steps import GradientSteps
from pld_ray.algorithm.nonfinite import Batch, NonFiniteLossError
from pld_ray.algorithm.optimizers import make_optimizers, trained_parameters
from pld_ray.algorithm.residual import hybrid, losses
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import INTERVENED, SUCCEEDED
from pld_ray.config.residual_sac import ResidualSACParams

CONSERVED = slice(None, None, 4)
"""Every fourth row of a batch, of either ring."""

__all__ = ["NonFiniteLossError", "ResidualSACUpdate", "make_optimizers"]


class Replay(Protocol):
    """What the update needs of a replay."""

    def sample(self, batch_size: int, n_step: int, gamma: float) -> Batch: ...


class ResidualSACUpdate(GradientSteps):
    """Gradient steps of residual SAC; see there what a loss that is not finite does.

    Args:
        networks: what is trained.
        optimizers: one per group of `trained_parameters`; see `make_optimizers`.
        replay: `FrameRing`, `SymmetricReplay`, or anything with their `sample`.
        params: see `ResidualSACParams`.
        seed, options: of `GradientSteps`.
    """

    networks: ResidualNetworks
    params: ResidualSACParams

    def __init__(
        self,
        networks: ResidualNetworks,
        optimizers: Mapping[str, Optimizer],
        replay: Replay,
        params: ResidualSACParams,
        seed: int = 0,
        **options: Any,
    ) -> None:
        share = float(losses.active(networks.residual_dims).mean())
        trained = trained_parameters(networks)
        super().__init__(
            networks, optimizers, replay, params, seed, trained, active_share=share, **options
        )
        self.critic_encoder = networks.critic_encoder or networks.encoder
        self.discrete = networks.discrete_critic is not None
        self.target_entropy = self._entropy_target()

    # --- the algorithm ---------------------------------------------------------------------------

    def run(self, num_updates: int) -> dict[str, float]:
        """Make `num_updates` critic steps, with an actor step at each `critic_actor_update_ratio`.

        Returns:
            Means over the call: critic_loss, critic_grad_norm, td_target_mean, conservative_gap (of
            Q; while it has a weight, a part of critic_loss), and of Q at the batch's actions
            q_mean, q_max and q_out_of_bound; where actor steps fell into it, actor_loss,
            actor_grad_norm, q_policy, entropy (nats, of the residual), residual_abs (over the
            dimensions that carry one), temperature_loss, temperature_grad_norm, alpha. With a
            discrete gripper discrete_critic_loss, discrete_critic_grad_norm and discrete_q_mean.
            Of HG-DAgger actor_loss, actor_grad_norm, residual_abs, and imitated_share of the rows.

        Raises:
            NonFiniteLossError: see the class.
        """
        self.target_entropy = self._entropy_target()
        return super().run(num_updates)

    def draw(self) -> Batch:
        return self.sample_from(self.replay)

    def sample_from(self, replay: Replay) -> Batch:
        """A batch of it; images of a trained encoder are shifted (DrQ)."""
        params = self.params
        batch = replay.sample(params.batch_size, self.return_steps, params.gamma)
        self.networks.shift_images(batch, self.generator)
        if self.discrete:  # the continuous part neither moves nor judges the grippers
            batch["action"] = batch["action"].clone()
            batch["action"][:, params.gripper_dims] = 0.0
        if not params.compose_base:  # the networks know of no base policy
            batch["base_action"] = torch.zeros_like(batch["base_action"])
            batch["next_base_action"] = torch.zeros_like(batch["next_base_action"])
        return batch

    @property
    def return_steps(self) -> int:
        """Length of the TD return: longer while the actor waits, where that is asked for."""
        params = self.params
        if params.actor_delay_n_step and self.updates < params.actor_delay_updates:
            return params.actor_delay_n_step
        return params.n_step

    @property
    def actor_lr(self) -> float:
        """Of the actor's next step: it rises linearly from 0, when the actor's wait is over."""
        params = self.params
        if not params.actor_lr_warmup_updates:
            return params.actor_lr
        moving = self.updates + 1 - params.actor_delay_updates
        return params.actor_lr * min(1.0, moving / params.actor_lr_warmup_updates)

    @property
    def conservative_weight(self) -> float:
        """Of the critics' next step: from the actor's first on, it falls to its remainder."""
        params = self.params
        moved = self.updates - params.actor_delay_updates
        if moved < 0:
            return 0.0
        if not params.conservative_updates:
            return params.conservative_weight
        falling = 1.0 - moved / params.conservative_updates
        return params.conservative_weight * max(params.conservative_remainder, falling)

    def step(self, batch: Batch) -> None:
        """One critic step, the actor and temperature steps if they are due, and the target; of
        HG-DAgger one actor step."""
        if self.params.actor_loss == "hg_dagger":
            self.imitate(batch)
            self.updates += 1
            return
        x = self.networks.encode(self.critic_encoder, batch)
        self.update_critic(batch, x)
        x = x.detach()
        if self.discrete:
            self.update_discrete_critic(batch, x)
        due = (self.updates + 1) % self.params.critic_actor_update_ratio == 0
        if due and self.updates >= self.params.actor_delay_updates:
            log_prob = self.update_actor(batch, x)
            self.update_temperature(batch, log_prob)
            self.update_average()
        self.update_target()
        self.updates += 1

    def update_critic(self, batch: Batch, x: Tensor) -> None:
        """(8)-(14): regress every critic onto the on-the-fly target."""
        with torch.no_grad():
            target, distribution = self.td_target(batch)
        critic = self.networks.critic
        judged: tuple[Tensor, ...] = x, batch["base_action"], batch["action"]
        if self.conservative_weight:  # in the same pass, which is quicker than one of its own
            judged = tuple(map(torch.cat, zip(judged, self.policy_rows(batch, x), strict=True)))
        outputs, policy_outputs = critic.outputs(*judged).tensor_split([len(x)], dim=1)
        q = critic.value(outputs.detach())
        if distribution is None:
            loss = losses.critic_loss(outputs, target)
        else:
            loss = categorical.cross_entropy(outputs, distribution)
        if critic.reduction_logits is not None:
            loss = loss + ensemble.weighting_loss(q, target, critic.reduction_logits)
        if self.conservative_weight:
            q_policy, q_data = critic.value(policy_outputs), critic.value(outputs[:, CONSERVED])
            gap = losses.conservative_loss(q_policy, q_data)
            loss = loss + self.conservative_weight * gap
            self.metrics.record("conservative_gap", gap.detach() / len(outputs))
        self.descend("critic", loss, batch)
        self.metrics.record("q", q)
        self.metrics.record("td_target", target)

    def policy_rows(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, base action and what the actor would do, in the rows that are `CONSERVED`."""
        x = x[CONSERVED]
        some = {name: column[CONSERVED] for name, column in batch.items()}
        base_action = some["base_action"]
        with torch.no_grad():
            delta, _ = self.residual(self.actor_view(some, x), base_action, 1)
            return x, base_action, self.compose(base_action, delta)[0]

    def td_target(
        self, batch: Batch, backup_entropy: bool | None = None, entropy_factor: float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """(8)-(12): y [B], and of categorical critics its distribution [B, Z].

        Critics judge the actor that acts: what the trained one does beyond it, nobody has tried.

        Args:
            batch: of `sample_from`.
            backup_entropy: None takes the parameter.
            entropy_factor: on alpha * log_prob; `calql_td_xi` of the Cal-QL initialisation.
        """
        networks, params = self.networks, self.params
        if backup_entropy is None:
            backup_entropy = params.backup_entropy
        next_base = batch["next_base_action"]
        next_x = networks.encode(networks.encoder, batch, successor=True)
        noise = self.noise(params.otf_candidates, *next_base.shape)
        delta, log_prob = networks.residual_of(networks.acting_actor, next_x, next_base, noise)
        actions = self.compose(next_base, delta)
        members = ensemble.draw_members(
            params.num_critics, params.num_subsample_critics, self.generator
        )
        target_critic = networks.target_critic
        if not networks.target_encoder.is_identity:
            next_x = networks.encode(networks.target_encoder, batch, successor=True)
        outputs = target_critic.otf_outputs(next_x, next_base, actions, members)
        alpha = entropy_factor * networks.log_alpha.exp()
        reward, discount, reduction = batch["reward"], batch["discount"], params.target_reduction
        logits = target_critic.logits_of(members)
        if target_critic.num_atoms == 1:
            y = losses.td_target(
                reward, discount, outputs, log_prob, alpha, reduction, backup_entropy, logits
            )
            return y, None
        atoms = target_critic.atoms
        probability, bonus = categorical.choose_distribution(
            outputs, atoms, log_prob, alpha, reduction, backup_entropy, logits
        )
        r, smoothing = reward + discount * bonus, params.critic_smoothing
        distribution = categorical.target_distribution(probability, r, discount, atoms, smoothing)
        return distribution @ atoms, distribution

    def update_discrete_critic(self, batch: Batch, x: Tensor) -> None:
        """Double DQN on the gripper choices; the observation's encoding is not trained by it."""
        networks = self.networks
        critic, target_critic = networks.discrete_critic, networks.target_discrete_critic
        assert critic is not None, "gripper=discrete has this critic"
        assert target_critic is not None, "and its target"
        with torch.no_grad():
            next_x = networks.encode(self.critic_encoder, batch, successor=True)
            next_base = batch["next_base_action"]
            target = hybrid.discrete_td_target(
                batch["reward"],
                batch["discrete_penalty"],
                batch["discount"],
                critic(next_x, next_base),
                target_critic(next_x, next_base),
            )
        q = critic(x, batch["base_action"])
        loss = hybrid.discrete_critic_loss(q, batch["discrete_action"].long(), target)
        self.descend("discrete_critic", loss, batch)
        self.metrics.record("discrete_q_mean", q.detach().mean())

    def update_actor(self, batch: Batch, x: Tensor) -> Tensor:
        """(16), (17): returns log pi(delta | x) [B], without gradient."""
        networks, params = self.networks, self.params
        base_action = batch["base_action"]
        actor_x = self.actor_view(batch, x)
        noise = self.noise(1, *base_action.shape)
        delta, log_prob = networks.residual(actor_x, base_action, noise)
        judged, acting = delta, None
        if params.proximal_penalty:
            with torch.no_grad():
                acting, _ = networks.residual_of(networks.acting_actor, actor_x, base_action, noise)
            judged = losses.within_reach(delta, acting, params.proximal_range)
        q = networks.critic.otf(x, base_action, self.compose(base_action, judged)).squeeze(1)
        loss = losses.actor_loss(
            q,
            log_prob[0],
            delta[0],
            networks.log_alpha.detach().exp(),
            params.actor_reduction,
            params.residual_penalty,
            networks.critic.fixed_logits(),
        )
        if acting is not None:
            loss = loss + params.proximal_penalty * losses.proximal_loss(delta[0], acting[0])
        if params.success_imitation:
            executed = networks.decompose(base_action, batch["action"])
            imitation = losses.imitation_loss(delta[0], executed, batch[SUCCEEDED])
            loss = loss + params.success_imitation * imitation
        for group in self.optimizers["actor"].param_groups:
            group["lr"] = self.actor_lr
        # the loss passes through the critics without leaving a gradient on them
        self.descend("actor", loss, batch)
        log_prob = log_prob[0].detach()
        self.metrics.record("q_policy", q.detach())
        self.metrics.record("log_prob", log_prob)
        self.metrics.record("delta", delta.detach())
        return log_prob

    def imitate(self, batch: Batch) -> None:
        """HG-DAgger: the mean action is that of the person, where one acted; no critic is asked."""
        networks, base_action = self.networks, batch["base_action"]
        x = networks.encode(networks.encoder, batch)
        delta, _ = networks.residual(x, base_action, torch.zeros_like(base_action))
        executed = networks.decompose(base_action, batch["action"])
        self.descend("actor", losses.imitation_loss(delta, executed, batch[INTERVENED]), batch)
        self.update_average()
        self.metrics.record("delta", delta.detach())
        self.metrics.record("imitated_share", batch[INTERVENED].float().mean())

    def update_temperature(self, batch: Batch, log_prob: Tensor) -> None:
        """(18), (19), with log alpha kept above its floor."""
        log_alpha = self.networks.log_alpha
        loss = losses.temperature_loss(log_alpha, log_prob, self.target_entropy)
        self.descend("temperature", loss, batch)
        with torch.no_grad():
            log_alpha.clamp_(min=self.params.log_alpha_min)
            self.metrics.record("alpha", log_alpha.exp())

    def update_average(self) -> None:
        """phi_bar <- beta phi_bar + (1 - beta) phi, of the actor that acts."""
        average = self.networks.ema_actor
        if average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.parameters()),
                    list(self.networks.actor.parameters()),
                    1.0 - self.params.ema_decay,
                )

    # --- pieces of it ----------------------------------------------------------------------------

    def actor_view(self, batch: Batch, x: Tensor) -> Tensor:
        """The batch as the actor sees it; x is the critics' view of it, which they may share."""
        networks = self.networks
        return x if networks.critic_encoder is None else networks.encode(networks.encoder, batch)

    def residual(
        self, x: Tensor, base_action: Tensor, num_candidates: int
    ) -> tuple[Tensor, Tensor]:
        """(2), (8): delta [K, B, A] and its log-probability [K, B]."""
        noise = self.noise(num_candidates, *base_action.shape)
        return self.networks.residual(x, base_action, noise)

    def _entropy_target(self) -> Tensor:
        """H_tgt for the beta in force; beta changes between runs, not within one."""
        return losses.entropy_target(
            self.networks.residual_dims,
            self.params.target_entropy,
            self.networks.residual_scale,
            self.params.scale_entropy_target,
        )

    def compose(self, base_action: Tensor, delta: Tensor) -> Tensor:
        """(4), (9): what would be executed; a discrete gripper's dimension is 0."""
        action = self.networks.compose(base_action, delta)
        return action * self.networks.gripper_mask if self.discrete else action
