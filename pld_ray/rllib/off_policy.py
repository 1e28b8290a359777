"""`OffPolicy`, what the algorithms share: sample -> feed -> update -> publish."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.evaluation.play import EpisodeResult, success_rate
from pld_ray.evaluation.requests import Contestant, Evaluation
from pld_ray.evaluation.video import Film
from pld_ray.rllib.asynchronous import AsynchronousLoop
from pld_ray.rllib.checkpoints import Checkpoints
from pld_ray.rllib.config import OffPolicyConfig
from pld_ray.rllib.learners import Learners
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.rounds import Rounds
from pld_ray.rllib.runners import Runners, ask_one, busy_ones_ended
from pld_ray.rllib.stream_seed import ONLINE, RESTORED, stream_seed
from pld_ray.rllib.tune_resources import ReservesReplicas
from pld_ray.rollout import factory
from pld_ray.rollout.messages import PublishedWeights

if TYPE_CHECKING:
    from pld_ray.pool import BasePolicyPool, PoolSpec


class OffPolicy(ReservesReplicas, Checkpoints):
    """An algorithm that learns from replay and is evaluated on held init states.

    Phases: `collect` (what fills the rings before the first update), one of the subclass's own if
    it has one, then `online`.

    Attributes:
        progress: all counters.
        learners, runners: the processes, each kind as one.
        collection, rounds, asynchronous: the loops; the last is None unless `sampling` asks for it.
        initialization_rows: metrics along the phase before `online`; whoever reads them clears
            them.
        on_share: may be set to what is called after each share of that phase, and may raise.
    """

    config: OffPolicyConfig

    def setup(self, config: Any) -> None:
        factory.register()
        self.base_policy_pool = self._start_base_policy()
        super().setup(config)
        config = self.config
        self.progress = Progress(self.make_schedule(), config.utd, config.max_staleness)
        self.learners = Learners(self.learner_group, self.metrics, self.logdir)
        self.runners = Runners(self.env_runner_group, self.metrics, config)
        parts = self.progress, self.learners, self.runners
        self.collection = self.make_collection(*parts)
        self.rounds = Rounds(config.sampling != "synchronous", *parts)
        is_asynchronous = config.sampling == "asynchronous"
        self.asynchronous = AsynchronousLoop(config, *parts) if is_asynchronous else None
        self.initialization_rows: list[dict[str, float]] = []
        self.on_share: Callable[[], None] = lambda: None
        self._num_restored = 0

    # --- what a subclass says --------------------------------------------------------------------

    def make_schedule(self) -> ResidualScaleSchedule:
        """beta over training."""
        raise NotImplementedError

    def check_start(self) -> None:
        """See, of a run that begins, what would be refused later: there may be nothing."""

    def make_collection(self, progress: Progress, learners: Learners, runners: Runners) -> Any:
        """What fills the rings: `step` (True when it is over), `save`, `load`."""
        raise NotImplementedError

    def begin_learning(self) -> None:
        """The collection is over."""
        self.begin_online()

    def initialize_learner(self) -> None:
        """A share of the phase between `collect` and `online`."""
        raise NotImplementedError

    @property
    def compares(self) -> bool:
        """Whether there is a base policy that the result is compared with."""
        return bool(self.config.base_policy_options.type != "none")

    @property
    def has_base(self) -> bool:
        """Whether it is there to be evaluated now."""
        return self.compares

    @property
    def has_frozen_base(self) -> bool:
        """Whether there is one that training does not change."""
        return False

    @property
    def acts_as_base(self) -> bool:
        """Whether what is learnt acts as the frozen base policy still, as no step has moved it."""
        return False

    def evaluate_start(self, init_state_ids: list[int]) -> dict[str, list[EpisodeResult]]:
        """Name -> episodes of what the result is compared with, `base` among them."""
        return {"base": self.evaluate_base(init_state_ids)}

    # --- counters --------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """`collect`, `calql`, `offline` or `online`."""
        return self.progress.phase

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.progress.env_steps

    @property
    def updates(self) -> int:
        """Updates so far, those of Cal-QL aside."""
        return self.progress.updates

    @property
    def residual_scale(self) -> float:
        """beta_t at this moment."""
        return self.progress.residual_scale

    def _start_base_policy(self) -> BasePolicyPool | None:
        """Put the base policy, or the pool's client, where the runners look for it."""
        config = self.config.copy(copy_frozen=False)
        options, pool = config.base_policy_options, None
        policy: Any = options.settings()
        if config.uses_pool:
            from pld_ray.pool import BasePolicyPool

            pool = BasePolicyPool(self.pool_spec())
            policy = pool.client()
        config.env_config = {**config.env_config, "base_policy": policy}
        if options.prefetch:
            config.env_config["prefetch"] = True
        config.freeze()
        self.config = config
        return pool

    def pool_spec(self) -> PoolSpec:
        """The pool that `placement="pool"` starts."""
        return self.config.pool_spec()

    # --- one step --------------------------------------------------------------------------------

    def training_step(self) -> None:
        if not self.runners.watch():
            self.restore_env_runners(self.env_runner_group)
            in_rounds = self.phase == "online" and self.asynchronous is None
            if self.phase == "collect" or in_rounds:
                return  # what is left to do begins with a runner
        if self.phase == "collect":
            if self.collection.step():
                self.begin_learning()
        elif self.phase != "online":
            self.initialize_learner()
            self.on_share()
        elif self.asynchronous is not None:
            self.asynchronous.step()
        else:
            self.rounds.step()

    def restore_env_runners(self, env_runner_group: EnvRunnerGroup) -> list[int]:
        """RLlib's; and a process that was started again does not repeat its first episodes."""
        restored: list[int] = super().restore_env_runners(env_runner_group)
        if restored and env_runner_group is self.env_runner_group:
            self._num_restored += len(restored)
            numbers = self.config.seed or 0, self.env_steps, self._num_restored
            self.runners.restart(stream_seed(RESTORED, *numbers), restored)
        return restored

    def initialize(self) -> None:
        """All that comes before `online`."""
        while self.phase != "online":
            self.training_step()

    def begin_online(self) -> None:
        """What is learnt takes over from a fresh episode on every runner."""
        self.progress.phase = "online"
        self.restart()

    def restart(self) -> None:
        """Fresh episodes with the present weights; a resumed run does not repeat its episodes."""
        if self.phase != "collect":
            self.runners.restart(stream_seed(ONLINE, self.config.seed or 0, self.progress.updates))
        self.rounds.publish()
        if self.asynchronous is not None and self.phase == "online":
            self.asynchronous.start()

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate_base(self, init_state_ids: list[int]) -> list[EpisodeResult]:
        """Episodes of the base policy alone on these held init states."""
        base = {"base": Contestant(residual=False)}
        return self.start_evaluation(init_state_ids, base, alone=True).wait()["base"]

    def evaluate_residual(
        self, init_state_ids: list[int], residual_scale: float | None = None
    ) -> list[EpisodeResult]:
        """Episodes of base + residual, deterministic, at this beta or the one in force."""
        residual = {"residual": Contestant(residual_scale=residual_scale)}
        return self.start_evaluation(init_state_ids, residual, alone=True).wait()["residual"]

    def start_evaluation(
        self,
        init_state_ids: list[int],
        contestants: Mapping[str, Contestant],
        alone: bool = False,
    ) -> Evaluation:
        """Evaluate the present weights; `poll()` the results while training goes on.

        It runs on the evaluation runners if there are any (`evaluation_num_env_runners`), else on
        the training ones, which then sample nothing until it is over.

        Args:
            init_state_ids: ids of stored init states.
            contestants: name -> who plays; a residual one without weights gets the present ones.
            alone: nothing goes on beside it; the training runners play it if they are more.
        """
        group = self.eval_env_runner_group or self.env_runner_group
        if alone:
            groups = (group, self.env_runner_group)
            group = max(groups, key=lambda g: g.num_healthy_remote_env_runners())
        self.restore_env_runners(group)
        if any(c.residual and c.weights is None for c in contestants.values()):
            present = self.snapshot_weights()
            contestants = {
                name: replace(c, weights=present) if c.residual and c.weights is None else c
                for name, c in contestants.items()
            }

        def restore() -> None:
            if not self.restore_env_runners(group):
                self.runners.on_wait()

        return Evaluation(group, init_state_ids, contestants, restore, self.runners.on_look)

    def film(self, init_state_ids: list[int]) -> dict[int, Film]:
        """Init state -> base, where there is one, beside base + residual at the beta in force.

        Raises:
            EnvRunnerError: no OpenGL library where the runner is; the message says what to install.
        """
        group = self.eval_env_runner_group or self.env_runner_group
        weights = self.snapshot_weights()
        return {
            state: ask_one(group, "film", init_state_id=state, weights=weights)
            for state in init_state_ids
        }

    def snapshot_weights(self) -> PublishedWeights:
        """The present inference state in the object store."""
        return PublishedWeights(self.updates, ray.put(self.learners.weights()))

    # --- checkpoint ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Return when nothing that was submitted to the learners is outstanding."""
        if self.asynchronous is not None and self.phase == "online":
            self.asynchronous.drain()

    def cleanup(self) -> None:
        with busy_ones_ended(self.env_runner_group, self.eval_env_runner_group):
            super().cleanup()
        if self.base_policy_pool is not None:
            self.base_policy_pool.stop()
        with contextlib.suppress(OSError):  # something was written there
            os.rmdir(self.logdir)  # RLlib's own, in ~/ray_results


def evaluate_init_states(
    algorithm: OffPolicy, eval_group: EnvRunnerGroup | None
) -> tuple[dict[str, Any], int, int]:
    """RLlib's `custom_evaluation_function`: success on `config.held_init_states`."""
    group = eval_group or algorithm.env_runner_group
    contestants = {"residual": Contestant()}
    evaluation = Evaluation(group, algorithm.config.held_init_states, contestants)
    episodes = evaluation.wait()["residual"]
    steps = sum(episode.length for episode in episodes)
    results = {
        "success_rate": success_rate(episodes),
        "episode_return_mean": sum(episode.sum_reward for episode in episodes) / len(episodes),
        "episode_len_mean": steps / len(episodes),
        "num_episodes": len(episodes),
    }
    logger = MetricsLogger(stats_cls_lookup=algorithm.config.stats_cls_lookup)
    logger.log_dict(results, reduce="mean", window=1)
    algorithm.metrics.aggregate([logger.reduce()], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    return results, steps, steps
