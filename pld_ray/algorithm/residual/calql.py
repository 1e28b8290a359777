"""Cal-QL initialisation (20), (21): critic steps on offline data before the first online update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pld_ray.algorithm import categorical, ensemble
from pld_ray.algorithm.metrics import UpdateMetrics
from pld_ray.algorithm.nonfinite import Batch
from pld_ray.algorithm.residual import conservative, losses
from pld_ray.algorithm.residual.update import Replay, ResidualSACUpdate
from pld_ray.errors import UserError
from pld_ray.replay import FrameRing


class OfflineDataError(UserError, ValueError):
    """The offline buffer cannot initialise a critic; the message says why and what to do."""


class CalQLInitialization:
    """Trains the critic of a `ResidualSACUpdate` on offline data, conservatively.

    The actor is not touched: the policy whose actions are sampled is the untrained residual, that
    is the base policy with its exploration. Every sampled action is composed with the base action
    of the state at which it was sampled; actions of x' are judged at x.

    Args:
        sac: whose networks, critic optimiser, generator and checks are used.
        offline: the offline ring.
    """

    def __init__(self, sac: ResidualSACUpdate, offline: Replay) -> None:
        self.sac = sac
        self.offline = offline
        self.params = params = sac.params
        start = math.log(params.calql_alpha) if params.calql_alpha else 0.0
        self.log_multiplier = nn.Parameter(torch.tensor(start, device=sac.device))
        self.optimizer = torch.optim.Adam([self.log_multiplier], params.calql_lagrange_lr)
        self.steps = 0
        self.metrics = UpdateMetrics(params.value_range, active_share=1.0)
        dims = losses.active(sac.networks.residual_dims)
        self.log_density_random = conservative.uniform_log_density(float(dims.sum()))

    def run(self, num_steps: int) -> dict[str, float]:
        """Make `num_steps` critic steps.

        Returns:
            Means over the call: calql_loss, calql_td_loss, calql_regularizer, calql_alpha,
            calql_bound_rate (share of policy actions whose Q lay below G), calql_q_data,
            calql_q_policy, calql_gap (their difference), q_mean, q_max, q_out_of_bound.

        Raises:
            NonFiniteLossError: a loss or gradient is not finite.
        """
        self.metrics.clear()
        self.sac.checks.clear()
        for _ in range(num_steps):
            self.step(self.sac.sample_from(self.offline))
        self.sac.checks.look()
        return self.metrics.means()

    def step(self, batch: Batch) -> None:
        """(20), (21): TD loss + alpha_c * regulariser, one step, then the target."""
        sac, params = self.sac, self.params
        critic = sac.networks.critic
        x = sac.networks.encode(sac.critic_encoder, batch)
        with torch.no_grad():
            target, distribution = sac.td_target(
                batch, params.calql_td_xi > 0, entropy_factor=params.calql_td_xi
            )
        outputs = critic.outputs(x, batch["base_action"], batch["action"])
        q_data = critic.value(outputs)
        if distribution is None:
            td_loss = losses.critic_loss(outputs, target)
        else:
            td_loss = categorical.cross_entropy(outputs, distribution)
        regularizer = self.regularizer(batch, x, q_data)
        alpha = self.log_multiplier.detach().exp() if params.calql_lagrange else params.calql_alpha
        loss = td_loss + (alpha * regularizer).sum()
        if critic.reduction_logits is not None:
            logits = critic.reduction_logits
            loss = loss + ensemble.weighting_loss(q_data, target, logits)
        sac.descend("critic", loss, batch)
        if params.calql_lagrange:
            self._update_multiplier(regularizer.detach())
        sac.update_target()
        self.steps += 1
        for name, value in (
            ("calql_loss", loss.detach()),
            ("calql_td_loss", td_loss.detach()),
            ("calql_regularizer", regularizer.detach().mean()),
            ("calql_alpha", torch.as_tensor(alpha, device=sac.device)),
            ("calql_q_data", q_data.detach().mean()),
            ("q", q_data.detach()),
        ):
            self.metrics.record(name, value)

    def regularizer(self, batch: Batch, x: Tensor, q_data: Tensor) -> Tensor:
        """The conservative term per critic, [N]."""
        sac, params = self.sac, self.params
        networks, base, next_base = sac.networks, batch["base_action"], batch["next_base_action"]
        num_actions = params.calql_num_actions
        with torch.no_grad():
            shape = (num_actions, *base.shape)
            uniform = torch.rand(shape, generator=sac.generator, device=sac.device) * 2.0 - 1.0
            random = sac.compose(base, uniform * losses.active(networks.residual_dims))
            actor_x = sac.actor_view(batch, x)
            next_x = networks.encode(networks.encoder, batch, successor=True)
            delta, log_prob = sac.residual(actor_x.detach(), base, num_actions)
            next_delta, next_log_prob = sac.residual(next_x, next_base, num_actions)
            actions = torch.cat(
                (random, sac.compose(base, delta), sac.compose(next_base, next_delta))
            )
        q = networks.critic.otf(x, base, actions)
        q_random, q_policy, q_next_policy = q.split(num_actions, dim=1)
        mc_return = batch["mc_return"]
        floor = mc_return if params.calql_calibrate else torch.full_like(mc_return, -math.inf)
        policy = q_policy.detach()
        self.metrics.record("calql_bound_rate", conservative.bound_rate(policy, floor))
        self.metrics.record("calql_q_policy", policy.mean())
        self.metrics.record("calql_gap", policy.mean() - q_data.detach().mean())
        return conservative.conservative_regularizer(
            q_data,
            q_random,
            q_policy,
            q_next_policy,
            log_prob,
            next_log_prob,
            self.log_density_random,
            floor,
            params.calql_lse_beta,
        )

    def _update_multiplier(self, regularizer: Tensor) -> None:
        loss = conservative.lagrange_loss(
            self.log_multiplier, regularizer, self.params.calql_target_gap
        )
        gradient = torch.autograd.grad(loss, [self.log_multiplier])
        if self.sac.all_reduce is not None:
            self.sac.all_reduce(gradient)
        self.log_multiplier.grad = gradient[0]
        self.optimizer.step()

    @staticmethod
    def check(offline: FrameRing, reward_bias: float = 0.0) -> None:
        """Raise OfflineDataError unless there is a success: the bound is the return of the data."""
        if not len(offline):
            raise OfflineDataError(
                "Cal-QL: the offline buffer is empty: set offline_episodes above 0 (at least one "
                "per learner), or calql_steps=0"
            )
        # of the reward that the environment gave: a bias lowers every return, a success's too
        if float(offline.column("reward", offline.transition_rows()).max()) <= reward_bias:
            raise OfflineDataError(
                "Cal-QL: no episode of the offline buffer has a positive reward: it learns from "
                "successes; collect some (offline_episodes), or set calql_steps=0"
            )

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Counter, multiplier and its optimiser's moments."""
        moments = self.optimizer.state.get(self.log_multiplier, {})
        return {
            "steps": self.steps,
            "log_multiplier": self.log_multiplier.detach().cpu().numpy(),
            "moments": {key: value.cpu().numpy() for key, value in moments.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.steps = int(state["steps"])
        with torch.no_grad():
            self.log_multiplier.copy_(torch.as_tensor(state["log_multiplier"]))
        moments = {key: torch.tensor(value) for key, value in state["moments"].items()}
        self.optimizer.state[self.log_multiplier] = {  # Adam counts its steps on the host
            key: value if key == "step" else value.to(self.sac.device)
            for key, value in moments.items()
        }
        if not state["moments"]:
            self.optimizer.state.clear()
