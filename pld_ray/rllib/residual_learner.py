"""The learner of residual SAC."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import Optimizer

from pld_ray.algorithm.optimizers import make_optimizers
from pld_ray.algorithm.residual.calql import CalQLInitialization, OfflineDataError
from pld_ray.algorithm.residual.pretrained import load_critic
from pld_ray.algorithm.residual.update import ResidualSACUpdate
from pld_ray.rllib.learner import OffPolicyLearner, finite_or_saved


class ResidualSACLearner(OffPolicyLearner):
    """Learns a residual: `ResidualSACUpdate`, and Cal-QL's initialisation of its critic."""

    update_class = ResidualSACUpdate

    def make_optimizers(self, networks: Any) -> dict[str, Optimizer]:
        return make_optimizers(networks, self.config.learner_params())

    def build(self) -> None:
        super().build()
        self.calql = CalQLInitialization(self.gradient_steps, self.replay.offline)

    def initialize_critic(
        self, num_steps: int, residual_scale: float | None = None, failure_dir: str | None = None
    ) -> dict[str, float]:
        """Critic steps of the Cal-QL initialisation; otherwise as `train`.

        Raises:
            OfflineDataError: there is no success in the offline buffer.
        """
        if residual_scale is not None:
            self.set_residual_scale(residual_scale)
        self._check_successes()
        with finite_or_saved(failure_dir):
            return self.calql.run(num_steps)

    def _check_successes(self) -> None:
        """Raise OfflineDataError on every learner when one of them has no success: the others
        would wait for its gradients."""
        problem = None
        try:
            self.calql.check(self.replay.offline, self.config.reward_bias)
        except OfflineDataError as error:
            problem = error
        if not self.shard.all_true(problem is None):
            raise problem or OfflineDataError(
                "Cal-QL: another learner's share of the offline buffer holds no success: collect "
                "at least one per learner (offline_episodes, collection_steps), or set "
                "calql_steps=0"
            )

    def load_critic(self, checkpoint: str) -> None:
        """Take critic and observation statistics over from a checkpoint.

        Raises:
            PretrainedCriticError: it is missing, or does not fit this run.
        """
        load_critic(self.networks, checkpoint)

    def set_residual_scale(self, residual_scale: float) -> None:
        """beta from now on."""
        self.networks.residual_scale.fill_(residual_scale)

    def set_temperature(self, temperature: float) -> None:
        """Put alpha to a value; its optimiser goes on with the moments it has."""
        with torch.no_grad():
            self.networks.log_alpha.fill_(math.log(temperature))

    def _update_state(self) -> dict[str, Any]:
        return {**super()._update_state(), "calql": self.calql.state_dict()}

    def _set_update_state(self, state: dict[str, Any]) -> None:
        super()._set_update_state(state)
        if "calql" in state:
            self.calql.load_state_dict(state["calql"])
