"""`ResidualSAC`: a residual on a frozen base policy."""

from __future__ import annotations

import contextlib
from typing import Any

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.policies import base_policy_fingerprint
from pld_ray.rllib.checkpoints import local_folder
from pld_ray.rllib.collection import BaseCollection
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.learners import Learners
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import Runners
from pld_ray.rllib.trained_base import check_trained_on

CALQL_SHARE = 200  # steps of one training step of the initialisation


class ResidualSAC(OffPolicy):
    """Residual soft actor-critic on a frozen base policy (seed 002; PLD).

    Phases: `collect` (base policy alone: successes into the offline ring, a plain rollout as the
    warm-up into the online ring), `calql` (the critic's initialisation on the offline ring, if
    asked for), then `online` (probing, base + residual, updates).
    """

    config: ResidualSACConfig

    @classmethod
    def get_default_config(cls) -> ResidualSACConfig:
        return ResidualSACConfig()

    def setup(self, config: Any) -> None:
        super().setup(config)
        policy = self.config.base_policy_options
        with contextlib.suppress(OSError):  # it may lie on the runners' nodes alone
            self.progress.base_policy = base_policy_fingerprint(policy.type, policy.path)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """See `OffPolicy`; further, it was trained on this base policy.

        Raises:
            CheckpointError, ValueError: see `OffPolicy`.
            ConfigError: it was trained on another base policy.
        """
        if (found := self.progress.base_policy) is not None:
            path = self.config.base_policy_options.path
            check_trained_on(local_folder(checkpoint_dir), found, path)
        super().load_checkpoint(checkpoint_dir)

    def check_start(self) -> None:
        self.collection.check_cache()

    def make_schedule(self) -> ResidualScaleSchedule:
        return ResidualScaleSchedule(self.config.learner_params())

    def make_collection(
        self, progress: Progress, learners: Learners, runners: Runners
    ) -> BaseCollection:
        return BaseCollection(self.config, progress, learners, runners)

    @property
    def has_frozen_base(self) -> bool:
        return self.compares

    @property
    def acts_as_base(self) -> bool:
        params = self.config.learner_params()
        starts_there = params.compose_base and params.init_final == 0
        adds_nothing = starts_there and params.gripper == "continuous"
        waits = params.actor_loss == "sac" and self.updates <= params.actor_delay_updates
        return self.compares and adds_nothing and waits

    def begin_learning(self) -> None:
        """After the collection: initialise the critic, unless one was taken over, or go online."""
        if self.config.calql_steps and self.config.pretrained_critic is None:
            self.progress.phase = "calql"
        else:
            self.begin_online()

    def initialize_learner(self) -> None:
        """(20), (21): a share of the Cal-QL steps, at the schedule's final beta."""
        progress, wanted = self.progress, self.config.calql_steps
        steps = min(CALQL_SHARE, wanted - progress.calql_done)
        metrics = self.learners.initialize_critic(steps, self.config.residual_scale)
        progress.calql_done += steps
        row = {k: v for k, v in metrics.items() if k.startswith(("calql_", "q_"))}
        self.initialization_rows.append({"calql_steps": progress.calql_done, **row})
        if progress.calql_done >= wanted:
            self.begin_online()
