"""The env runner: RLlib's, that returns finished episodes of base + residual as flat columns."""

from __future__ import annotations

import faulthandler
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_STEP_TIMER

from pld_ray.evaluation.play import play_init_states
from pld_ray.evaluation.video import film_init_state
from pld_ray.rollout import factory
from pld_ray.rollout.acting import Actor
from pld_ray.rollout.episode import concatenate_episodes
from pld_ray.rollout.messages import PublishedWeights, describe_error
from pld_ray.rollout.streams import Ended, Streams
from pld_ray.rollout.vector_env import InfosPerEnv

METRICS_INTERVAL_S = 1.0


class ResidualEnvRunner(SingleAgentEnvRunner):
    """Steps base + residual and returns finished episodes as flat columns.

    The inherited `sample()` (RLlib episodes) keeps working: the module composes the action.
    """

    env: Any
    _streams: Streams | None = None
    _evaluation_env: InfosPerEnv | None = None
    _actor: Actor
    _taken: Any = None
    _taken_updates = 0
    _metrics_sent = 0.0
    _metrics_interval_s = 0.0
    _env_step_s = 0.0
    _num_env_steps = 0
    _rng: np.random.Generator
    params: Any  # ResidualSACParams

    def make_env(self) -> None:
        super().make_env()
        self.env = InfosPerEnv(self.env.unwrapped)
        self._streams = None
        self.params = self.config.residual_sac_params()
        if not hasattr(self, "_rng"):  # kept when a failed environment is rebuilt
            self._rng = np.random.default_rng([self.config.seed or 0, self.worker_index or 0])

    def make_module(self) -> None:
        super().make_module()
        self._actor = Actor(self.module)
        self._streams = None

    def restart_streams(self, seed: int) -> None:
        """Drop the open episodes and start anew from `seed` (mixed with the runner's index)."""
        self._rng = np.random.default_rng([seed, self.worker_index or 0])
        self._streams = None

    def forget_weights_version(self) -> None:
        """Take the next weights whatever their number: a restored checkpoint may be older."""
        self._weights_seq_no = 0

    # --- training --------------------------------------------------------------------------------

    def sample_columns(
        self,
        num_steps: int,
        base_only: bool,
        weights_updates: int = 0,
        random_actions: bool = False,
    ) -> dict[str, Any]:
        """Step for at least `num_steps` environment steps; return the episodes that finished.

        Args:
            num_steps: environment steps over all environments of this runner.
            base_only: act as the base policy alone (offline collection, warm-up).
            weights_updates: gradient updates behind the weights that the runner has now.
            random_actions: with `base_only`, uniform actions in place of the base policy's.

        Returns:
            `columns` and `episode_lengths` (see `EpisodeBuilder`), `episodes` (a dict each),
            `num_env_steps` stepped now, probing included, `oldest_start` of the open episodes, and
            this runner's `metrics`.
        """
        ended, stepped = Ended(), 0
        while stepped < num_steps:
            if self._streams is None:
                self._streams = self._start_streams(base_only)
            taken = self._streams.step(
                self._step_env, base_only, weights_updates, ended, random_actions
            )
            if taken is None:
                self._streams = None
            stepped += taken or 0
        self._log_rollout(stepped, ended, base_only)
        columns, lengths = concatenate_episodes(ended.columns)
        return {
            "columns": columns,
            "episode_lengths": lengths,
            "episodes": [asdict(result) for result in ended.results],
            "num_env_steps": stepped,
            "oldest_start": 0 if self._streams is None else self._streams.oldest_start,
            "metrics": self._due_metrics(),
        }

    def sample_columns_ref(self, **kwargs: Any) -> dict[str, Any]:
        """`sample_columns` with the columns left in the object store, for the learner to fetch.

        An exception comes back as `error`, in words: RLlib takes one that is raised in a runner's
        process for a dead runner, restores it, and so on for ever.
        """
        try:
            batch = self.sample_columns(**kwargs)
        except Exception as error:
            return {"error": describe_error(error)}
        if batch["episode_lengths"]:
            batch["columns"] = ray.put(batch["columns"])
        return batch

    def sample_with(
        self,
        weights: PublishedWeights | None,
        generation: int,
        stall_timeout_s: float,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """`sample_columns_ref`, after taking `weights` unless the runner has them already.

        `generation` comes back with the batch, so that the driver knows what was asked for before
        a restore. Metrics are sent about once a second: they cost the driver more than columns.
        If it takes longer than `stall_timeout_s`, this process ends with its threads' stacks in
        its log, and Ray starts another.
        """
        self._metrics_interval_s = METRICS_INTERVAL_S
        # a thread in C: it needs no interpreter lock, which a stuck simulator may hold
        faulthandler.dump_traceback_later(stall_timeout_s, exit=True)
        try:
            if weights is not None:
                self.take_weights(weights)
            batch = self.sample_columns_ref(weights_updates=self._taken_updates, **kwargs)
        finally:
            faulthandler.cancel_dump_traceback_later()
        return {**batch, "generation": generation}

    def _due_metrics(self) -> Any:
        """This runner's metrics since it last told; None if that was just now."""
        if time.monotonic() - self._metrics_sent < self._metrics_interval_s:
            return None
        self._metrics_sent = time.monotonic()
        return self.get_metrics()

    def take_weights(self, weights: PublishedWeights) -> None:
        """Act with these weights from now on; lost ones are left out, newer ones will come."""
        if weights.state == self._taken:
            return
        try:
            state = ray.get(weights.state)
        except ray.exceptions.RayError:
            return
        self.forget_weights_version()
        self.set_state(state)
        self._taken, self._taken_updates = weights.state, weights.updates

    def _start_streams(self, base_only: bool) -> Streams:
        observation, _ = self._try_env_reset(seed=int(self._rng.integers(2**31)), options=None)
        space = self.env.single_action_space
        return Streams(observation, space, self.params, self._actor, self._rng, base_only)

    def _step_env(self, action: np.ndarray) -> Any:
        """RLlib's `_try_env_step`; its bookkeeping, a quarter of a step, is done once a request.

        None if the environment failed and was rebuilt.
        """
        if self.config.restart_failed_sub_environments:
            results = self._try_env_step(action)
            failed = isinstance(results, str) and results == ENV_STEP_FAILURE
            return None if failed else results
        started = time.perf_counter()
        results = self.env.step(action)
        self._env_step_s += time.perf_counter() - started
        self._num_env_steps += 1
        return results

    def _log_rollout(self, stepped: int, ended: Ended, base_only: bool) -> None:
        self._increase_sampled_metrics(stepped, len(ended.results))
        if self._num_env_steps:
            self._log_env_steps(self._metrics_num_try_env_step, self._num_env_steps)
            self.metrics.log_value(ENV_STEP_TIMER, self._env_step_s / self._num_env_steps)
            self._env_step_s, self._num_env_steps = 0.0, 0
        for _ in range(ended.num_env_failures):
            self.metrics.log_value("num_env_failures", 1, reduce="lifetime_sum")
        for episode in ended.results:
            self._log_episode_metrics(episode.length, episode.sum_reward, 0.0)
            if not base_only and episode.length > episode.probe_steps:  # the residual acted
                self.metrics.log_value("success_rate", float(episode.success), window=50)
            self.metrics.log_value("probe_steps_mean", float(episode.probe_steps), window=50)

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate(
        self,
        init_state_ids: list[int],
        residual: bool,
        residual_scale: float | None = None,
        weights: PublishedWeights | None = None,
    ) -> list[dict[str, Any]]:
        """One deterministic episode from each stored init state, on an environment of its own.

        Args:
            init_state_ids: ids of held init states of the task.
            residual: base + tanh(mean), or the base policy alone.
            residual_scale: beta; None is the one in force.
            weights: taken first; None keeps what the runner has.

        Returns:
            One `EpisodeResult` as a dict per id, in the order of `init_state_ids`.
        """
        if weights is not None:
            self.take_weights(weights)
        if self._evaluation_env is None:
            config = {**self.config.env_config, "num_envs": self.num_envs}
            self._evaluation_env = InfosPerEnv(factory.make_env(self.config.env, config))
        in_force = self.module.residual_scale.clone()
        try:
            if residual_scale is not None:
                self.module.residual_scale.fill_(residual_scale)
            results = play_init_states(
                self._evaluation_env,
                init_state_ids,
                (lambda observation: self._actor.act(observation)[0]) if residual else None,
            )
        finally:
            self.module.residual_scale.copy_(in_force)
        return [asdict(results[i]) for i in init_state_ids]

    def evaluate_rows(self, **kwargs: Any) -> dict[str, Any]:
        """`evaluate` for a runner in a process of its own: `rows`, or `error` in words."""
        try:
            return {"rows": self.evaluate(**kwargs)}
        except Exception as error:
            return {"error": describe_error(error)}

    def film(self, init_state_id: int, weights: PublishedWeights) -> dict[str, Any]:
        """One init state, base beside base + residual: see `film_init_state`, or `error`."""
        self.take_weights(weights)
        try:
            return film_init_state(
                self.config.env,
                self.config.env_config,
                init_state_id,
                lambda observation: self._actor.act(observation)[0],
            )
        except Exception as error:
            return {"error": describe_error(error)}

    def stop(self) -> None:
        super().stop()
        if self._evaluation_env is not None:
            self._evaluation_env.close()
