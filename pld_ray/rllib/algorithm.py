"""`ResidualSAC`: training_step = sample -> feed -> update -> publish."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    TIMERS,
)

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.errors import UserError, user_error
from pld_ray.evaluation.requests import Contestant, Evaluation
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import MARK, CheckpointError, write_manifest
from pld_ray.files.state_tree import StateFileError
from pld_ray.replay.storage import ReplayFileError
from pld_ray.rllib.asynchronous import AsynchronousLoop
from pld_ray.rllib.collection import BaseCollection
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.progress_file import read_progress
from pld_ray.rllib.rounds import Rounds
from pld_ray.rollout import factory
from pld_ray.rollout.messages import PublishedWeights, check_batches
from pld_ray.runs.run_state import PROGRESS_FILE

if TYPE_CHECKING:
    from pld_ray.pool import BasePolicyPool

CALQL_SHARE = 200  # steps of one training step of the initialisation


class LearnerLostError(UserError, RuntimeError):
    """A learner died; the run goes on from its last checkpoint."""


class ResidualSAC(Algorithm):
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
        factory.register()
        self.phase = "collect"
        self.env_steps = 0
        self.updates = 0
        self.update_debt = 0.0
        self.failure_dir: str | None = None  # for the batch of a non-finite loss; None is logdir
        self.last_evaluation: list[dict[str, Any]] = []
        self.recent_episodes: list[dict[str, Any]] = []
        self.published_updates = 0
        self.calql_done = 0
        self.calql_rows: list[dict[str, float]] = []  # figures along the initialisation
        self.next_shard = 0
        self.episodes = 0
        self.stored_steps = 0
        self.rounds = Rounds(self)
        self.loop: AsynchronousLoop | None = None
        self.base_policy_pool = self._start_base_policy()
        super().setup(config)
        params = self.config.residual_sac_params()
        self.schedule = ResidualScaleSchedule(params)
        self.collection = BaseCollection(self.config)
        if self.config.sampling == "asynchronous":
            self.loop = AsynchronousLoop(self)

    def _start_base_policy(self) -> BasePolicyPool | None:
        """Put the base policy, or the pool's client, where the runners look for it."""
        config = self.config.copy(copy_frozen=False)
        options, pool = config.base_policy_options, None
        policy: Any = {"type": options.type, "path": options.path, **options.loader()}
        if options.placement == "pool" and options.type != "none":
            from pld_ray.pool import BasePolicyPool

            pool = BasePolicyPool(config.pool_spec())
            policy = pool.client()
        config.env_config = {**config.env_config, "base_policy": policy}
        if options.prefetch:
            config.env_config["prefetch"] = True
        config.freeze()
        self.config = config
        return pool

    # --- one step --------------------------------------------------------------------------------

    def training_step(self) -> None:
        if self.phase == "collect":
            self.collection.step(self)
            return
        if self.phase == "calql":
            self._initialize_critic()
            return
        if self.loop is not None:
            self.loop.step()
        else:
            self.rounds.step()

    def initialize(self) -> None:
        """Collection and the critic's initialisation alone."""
        while self.phase != "online":
            self.training_step()

    def begin_learning(self) -> None:
        """After the collection: take a pretrained critic, or initialise one, or go online."""
        if self.config.calql_steps and self.config.pretrained_critic is None:
            self.phase = "calql"
        else:
            self.begin_online()

    def begin_online(self) -> None:
        """The residual takes over from a fresh episode on every runner."""
        self.phase = "online"
        self._learn(residual_scale=self.schedule.value(0))
        self.restart_runners(self.run_seed)
        self._publish()
        if self.loop is not None:
            self.loop.start()

    def _initialize_critic(self) -> None:
        """(20), (21): a share of the Cal-QL steps, at the schedule's final beta."""
        params = self.config.residual_sac_params()
        steps = min(CALQL_SHARE, params.calql_steps - self.calql_done)
        with self.metrics.log_time((TIMERS, "learner_update_timer")):
            results = self._learn(calql_steps=steps, residual_scale=params.residual_scale)
        self.calql_done += steps
        figures = results[0].get(DEFAULT_MODULE_ID, {})
        row = {
            name: float(stats.peek())
            for name, stats in figures.items()
            if name.startswith(("calql_", "q_"))
        }
        self.calql_rows.append({"calql_steps": self.calql_done, **row})
        if self.calql_done >= params.calql_steps:
            self.begin_online()

    @property
    def residual_scale(self) -> float:
        """beta_t of the schedule at this moment."""
        return self.schedule.value(self.env_steps - self.collection.env_steps)

    def _learn(self, **kwargs: Any) -> list[Any]:
        """One `ResidualSACLearner.update` call on every learner; their metrics."""
        kwargs |= {
            "failure_dir": self.failure_dir or self.logdir,
            "timesteps": {NUM_ENV_STEPS_SAMPLED_LIFETIME: self.env_steps},
        }
        metrics = self._on_learner(lambda learner, **kw: learner.update(**kw), **kwargs)
        self.metrics.aggregate(metrics, key=LEARNER_RESULTS)
        return metrics

    def _publish(self) -> None:
        """Actor, observation statistics and beta to every training runner.

        Waits until they have arrived: RLlib otherwise skips a runner whose last sync it has not
        looked at yet, and which weights a runner acts with would depend on timing.
        """
        with self.metrics.log_time((TIMERS, "synch_weights")):
            self.env_runner_group.sync_weights(
                from_worker_or_learner_group=self.learner_group,
                inference_only=True,
                timeout_seconds=None,
            )
        self.published_updates = self.updates

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate_base(self, init_state_ids: list[int]) -> list[dict[str, Any]]:
        """Episodes of the base policy alone on these held init states, a dict each."""
        return self.start_evaluation(init_state_ids, residual=False).wait()

    def evaluate_residual(
        self, init_state_ids: list[int], residual_scale: float | None = None
    ) -> list[dict[str, Any]]:
        """Episodes of base + residual, deterministic, at this beta or the one in force."""
        return self.start_evaluation(init_state_ids, residual_scale=residual_scale).wait()

    def film(self, init_state_ids: list[int]) -> dict[int, dict[str, Any]]:
        """Init state -> `mp4`, base beside base + residual at the beta in force, and its episodes.

        Raises:
            EnvRunnerError: no OpenGL library where the runner is; the message says what to install.
        """
        group = self.eval_env_runner_group or self.env_runner_group
        weights = self.snapshot_weights()
        films = {}
        for state in init_state_ids:
            if group.num_remote_env_runners() == 0:
                film = group.local_env_runner.film(state, weights)
            else:
                (film,) = group.foreach_env_runner(
                    "film",
                    kwargs={"init_state_id": state, "weights": weights},
                    remote_worker_ids=group.healthy_env_runner_ids()[:1],
                    local_env_runner=False,
                )
            check_batches([film])
            films[state] = film
        return films

    def start_evaluation(
        self,
        init_state_ids: list[int],
        residual: bool = True,
        residual_scale: float | None = None,
        weights: PublishedWeights | None = None,
    ) -> Evaluation:
        """Evaluate the present weights, or `weights`; `poll()` the result while training goes on.

        It runs on the evaluation runners if there are any (`evaluation_num_env_runners`), else on
        the training ones, which then sample nothing until it is over.
        """
        group = self.eval_env_runner_group or self.env_runner_group
        self.restore_env_runners(group)
        if residual and weights is None:
            weights = self.snapshot_weights()
        return Evaluation(group, init_state_ids, Contestant(residual, residual_scale, weights))

    def snapshot_weights(self) -> PublishedWeights:
        """The present inference state in the object store."""
        state = self.learner_group.get_state(
            components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
        )[COMPONENT_LEARNER]
        return PublishedWeights(self.updates, ray.put(state))

    # --- checkpoint ------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """RLlib's own checkpoint, and beside it, without pickle, all that a run needs.

        `learner.json` / `learner.safetensors` hold networks, optimisers and the update's own
        state, `replay/` both rings, `residual_sac.json` the counters, `collection.*` what has been
        collected so far, `manifest.json` the checksums of all these.
        """
        if self.loop is not None and self.phase == "online":
            self.loop.drain()
        super().save_checkpoint(checkpoint_dir)
        self._on_learner(lambda learner, path: learner.save(path), path=checkpoint_dir)
        progress = {
            "phase": self.phase,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "updates": self.updates,
            "update_debt": self.update_debt,
            "episodes": self.episodes,
            "stored_steps": self.stored_steps,
            "collection_env_steps": self.collection.env_steps,
            "collection_stored_steps": self.collection.stored_steps,
            "recent_episodes": self.recent_episodes,
            "calql_done": self.calql_done,
            "next_shard": self.next_shard,
            "schedule": self.schedule.state_dict(),
            MARK: True,
        }
        if self.phase == "collect":
            self.collection.save(pathlib.Path(checkpoint_dir))
        write_json_atomically(pathlib.Path(checkpoint_dir) / PROGRESS_FILE, progress)
        write_manifest(pathlib.Path(checkpoint_dir))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """What `save_checkpoint` wrote, RLlib's own part aside; runners start new episodes.

        Raises:
            CheckpointError: the folder is no checkpoint of ours, or a file of it is damaged.
            ValueError: a part of it is of other spaces or of another number of learners.
        """
        progress = read_progress(pathlib.Path(checkpoint_dir))
        if self.loop is not None and self.phase == "online":
            self.loop.drain()
        try:
            self._on_learner(lambda learner, path: learner.load(path), path=checkpoint_dir)
            self.collection.env_steps = progress["collection_env_steps"]
            if progress["phase"] == "collect":
                self.collection.load(pathlib.Path(checkpoint_dir))
        except (StateFileError, ReplayFileError) as error:
            raise CheckpointError(str(user_error(error))) from error
        self.phase = progress["phase"]
        self._iteration = progress["iteration"]
        self.env_steps = progress["env_steps"]
        self.updates = progress["updates"]
        self.update_debt = progress["update_debt"]
        self.episodes = progress.get("episodes", 0)
        self.stored_steps = progress.get("stored_steps", 0)
        self.collection.stored_steps = progress.get("collection_stored_steps", 0)
        self.recent_episodes = progress.get("recent_episodes", [])
        self.calql_done = progress.get("calql_done", 0)
        self.next_shard = progress.get("next_shard", 0)
        self.schedule.load_state_dict(progress["schedule"])
        if self.phase == "collect":
            self.env_steps = self.collection.env_steps
        else:
            self.restart_runners(self.run_seed)
        self.env_runner_group.foreach_env_runner(
            lambda runner: runner.forget_weights_version(), timeout_seconds=None
        )
        self._publish()
        if self.loop is not None and self.phase == "online":
            self.loop.start()

    def restore_from_path(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """RLlib's restore (`from_checkpoint`), then ours: the replay and the counters too."""
        super().restore_from_path(path, *args, **kwargs)
        if (pathlib.Path(path) / PROGRESS_FILE).is_file():
            self.load_checkpoint(str(path))

    def _on_learner(self, function: Any, **kwargs: Any) -> list[Any]:
        """What `function` returns for every learner.

        Raises:
            LearnerLostError: a learner's process or node is gone.
            Exception: what `function` raised.
        """
        values = []
        for result in self.learner_group.foreach_learner(function, **kwargs):
            value = result.get()
            if not result.ok:
                if isinstance(value, RayActorError):
                    raise LearnerLostError(f"a learner is gone: {value}") from value
                raise value
            values.append(value)
        if len(values) < max(1, self.config.num_learners):
            raise LearnerLostError(
                f"{len(values)} of {self.config.num_learners} learners answer; the others are gone"
            )
        return values

    def set_temperature(self, temperature: float) -> None:
        """Put alpha, which is learnt from there on, to a value on every learner."""
        self._on_learner(lambda learner, alpha: learner.set_temperature(alpha), alpha=temperature)

    def restart_runners(self, seed: int) -> None:
        """New episodes on every runner, from `seed`."""
        self.env_runner_group.foreach_env_runner(
            lambda runner: runner.restart_streams(seed), timeout_seconds=None
        )

    @property
    def run_seed(self) -> int:
        """Seed of the rollouts after `env_steps`: a resumed run does not repeat its episodes."""
        return (self.config.seed or 0) * 1_000_003 + self.updates

    def cleanup(self) -> None:
        super().cleanup()
        if self.base_policy_pool is not None:
            self.base_policy_pool.stop()
