"""`ACRLPD`: a flow policy over chunks, from datasets to the environment."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.evaluation.play import EpisodeResult
from pld_ray.evaluation.requests import Contestant
from pld_ray.policies.spaces import describe_spaces
from pld_ray.pool import BasePolicyPool, PoolSpec
from pld_ray.rllib.chunked.config import ACRLPDConfig
from pld_ray.rllib.chunked.env_runner import NO_RESIDUAL
from pld_ray.rllib.chunked.offline import OfflineData
from pld_ray.rllib.learners import Learners
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import Runners
from pld_ray.rollout import factory
from pld_ray.rollout.messages import PublishedWeights

OFFLINE_SHARE = 500  # updates of one iteration of the offline phase
ITERATION_STEPS = 500  # environment steps of one iteration of the online phase


class ACRLPD(OffPolicy):
    """Action-chunking reinforcement learning with prior data (seed 001; QC).

    Phases: `collect` (datasets into the offline ring), `offline` (updates on them), then `online`
    (the policy plays its chunks; half of each batch from either ring).
    """

    config: ACRLPDConfig

    @classmethod
    def get_default_config(cls) -> ACRLPDConfig:
        return ACRLPDConfig()

    def make_schedule(self) -> ResidualScaleSchedule:
        return ResidualScaleSchedule(NO_RESIDUAL)

    def make_collection(
        self, progress: Progress, learners: Learners, runners: Runners
    ) -> OfflineData:
        return OfflineData(self.config, learners, runners)

    def training_step(self) -> None:
        begun, online = self.env_steps, self.phase == "online"
        super().training_step()
        while online and self.env_steps - begun < ITERATION_STEPS:
            super().training_step()

    def begin_learning(self) -> None:
        self.progress.phase = "offline"

    def initialize_learner(self) -> None:
        """A share of the updates on datasets alone, up to the next checkpoint of a run."""
        progress, wanted = self.progress, self.config.offline_updates
        every = self.config.checkpoint_updates
        left = max(0, wanted - progress.offline_done), every - progress.offline_done % every
        if steps := min(OFFLINE_SHARE, *left):
            self.learners.train(steps, progress.residual_scale)
            progress.offline_done += steps
            progress.updates += steps
        if progress.offline_done >= wanted:
            self.begin_online()

    @property
    def compares(self) -> bool:
        """With the policy that the offline phase clones."""
        return True

    @property
    def has_base(self) -> bool:
        """The cloned policy is there after the offline phase."""
        return self.phase == "online"

    def pool_spec(self) -> PoolSpec:
        """Its replicas build the networks for the spaces of the environment, opened here."""
        settings, _ = factory.divided(self.config.env_config)
        made: Any = factory.env_maker(settings)()
        with contextlib.closing(made) as env:
            spaces = describe_spaces(env.observation_space, env.action_space)
        spec = super().pool_spec()
        return replace(spec, arguments={**spec.arguments, **spaces})

    def setup(self, config: Any) -> None:
        super().setup(config)
        if (pool := self.base_policy_pool) is not None:
            self.runners.to_pool = lambda: self.put_into(pool)

    def put_into(self, pool: BasePolicyPool) -> PublishedWeights:
        """The present weights, for the requests that name what is returned."""
        state = self.learners.weights()[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
        return PublishedWeights(self.updates, pool.publish(state))

    def snapshot_weights(self) -> PublishedWeights:
        """In the object store; or in the pool, and every runner knows of it."""
        if self.base_policy_pool is None:
            return super().snapshot_weights()
        self.runners.publish(self.learners)
        assert self.runners.published is not None
        return self.runners.published

    def evaluate_base(self, init_state_ids: list[int]) -> list[EpisodeResult]:
        """Episodes of the flow alone, which clones data."""
        cloned = {"base": Contestant(residual=False, weights=self.snapshot_weights())}
        return self.start_evaluation(init_state_ids, cloned, alone=True).wait()["base"]

    def evaluate_start(self, init_state_ids: list[int]) -> dict[str, list[EpisodeResult]]:
        """After the offline phase: the cloned flow alone, and the best of its candidates."""
        return {
            "base": self.evaluate_base(init_state_ids),
            "offline": self.evaluate_residual(init_state_ids),
        }
