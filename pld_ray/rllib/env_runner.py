"""The env runners: RLlib's, that return finished episodes as flat columns."""

from __future__ import annotations

import contextlib
import faulthandler
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_STEP_TIMER

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.columns import BASE_ACTION, Columns
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.data.demonstrations import Wanted
from pld_ray.evaluation.play import EpisodeResult, play_init_states
from pld_ray.evaluation.requests import Contestant
from pld_ray.evaluation.video import Film, film_init_state
from pld_ray.rllib import unused_settings
from pld_ray.rllib.scripted_expert import expert_maker
from pld_ray.rollout import factory
from pld_ray.rollout.base_actions import with_base_actions, with_gripper_labels
from pld_ray.rollout.control_clock import ControlClock
from pld_ray.rollout.device import DevicePerson
from pld_ray.rollout.episode import concatenate_episodes
from pld_ray.rollout.intervention import Intervenor
from pld_ray.rollout.live_view import LiveView, open_view
from pld_ray.rollout.make_intervenor import attend, make_intervenor
from pld_ray.rollout.messages import EpisodeBatch, Failure, PublishedWeights, SampleRequest
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv, Observation

# RLlib registers the environment anew for every runner that a process makes
warnings.filterwarnings("ignore", message=".*Overriding environment rllib-single-agent-env")


class OffPolicyEnvRunner(SingleAgentEnvRunner):
    """Plays and returns finished episodes as flat columns.

    The inherited `sample()` (RLlib episodes) keeps working: the module gives the action, and the
    open episodes of requests are dropped, as they are of the same environments. A subclass says who
    acts: `_actor`, and `play` in an evaluation.
    """

    env: Any
    _rllibs: Any = None
    """RLlib's wrapper around the same environments."""
    weights_updates = 0
    """Gradient updates behind the published weights that were taken last."""
    _streams: Streams | None = None
    _intervenor: Intervenor | None = None
    _on_wait: Callable[[], None] | None = None
    """See `end_waits_with`."""
    _view: LiveView | None = None
    _evaluation_env: InfosPerEnv | None = None
    _taken: Any = None
    _metrics_sent = 0.0
    _env_step_s = 0.0
    _num_env_steps = 0
    _rng: np.random.Generator
    _actor: Any
    """Composes base action and residual."""
    params: Any
    stream_params: ResidualSACParams | None = None
    """Of episodes, where they are not the learner's."""

    def make_env(self) -> None:
        try:
            super().make_env()
        except AssertionError as error:  # gymnasium's, of what is no vector environment
            if self.config.env == factory.ENV_NAME:
                raise  # an environment's own
            raise unused_settings.no_vector_env(self.config.env) from error
        if not isinstance(self.env.unwrapped, BaseActionVectorEnv):
            raise unused_settings.no_vector_env(self.config.env)
        self._rllibs = self.env  # kept: gymnasium closes what a wrapper holds when it is dropped
        self.env = InfosPerEnv(self._rllibs.unwrapped, self._make_clock())
        self._streams = None
        self.params = self.config.learner_params()
        if not hasattr(self, "_rng"):  # kept when a failed environment is rebuilt
            self._rng = np.random.default_rng([self.config.seed or 0, self.worker_index or 0])

    def _make_clock(self) -> ControlClock | None:
        rate = self.config.intervention.rate(self.config.control_hz)
        return None if rate is None else ControlClock(rate)

    def make_module(self) -> None:
        super().make_module()
        self._streams = None

    def start_streams(self, request: SampleRequest, observation: Observation) -> Streams:
        """The open episodes of environments that have just been reset."""
        env = self.env.unwrapped
        return Streams(
            observation,
            self.env.single_action_space,
            self.stream_params or self.params,
            self._actor,
            self._rng,
            request.base_only,
            expert_maker(env) if request.expert else None,
            self.person(request),
            env,
            self.view(),
        )

    def play(
        self, env: InfosPerEnv, init_state_ids: list[int], contestant: Contestant
    ) -> dict[int, EpisodeResult]:
        """One deterministic episode from each stored init state."""
        raise NotImplementedError

    def restart_streams(self, seed: int) -> None:
        """Drop the open episodes and start anew from `seed` (mixed with the runner's index)."""
        self._rng = np.random.default_rng([seed, self.worker_index or 0])
        self._streams = None

    def take_weights(self, weights: PublishedWeights) -> None:
        """Act with these weights from now on; lost ones are left out, newer ones will come."""
        if weights.state == self._taken:
            return
        try:
            state = ray.get(weights.state)
        except ray.exceptions.RayError:
            return
        self.set_state(state)
        self._taken, self.weights_updates = weights.state, weights.updates

    def reply(self, method: str, **kwargs: Any) -> Any:
        """What a method of a remote runner returns, or a `Failure` where it raises."""
        try:
            return getattr(self, method)(**kwargs)
        except Exception as error:
            return Failure.of(error)

    # --- training --------------------------------------------------------------------------------

    def sample(self, **kwargs: Any) -> Any:
        """RLlib's episodes, of the environments in which requests are played: the next request
        begins new episodes."""
        self._streams = None
        return super().sample(**kwargs)

    def sample_episodes(self, request: SampleRequest) -> EpisodeBatch:
        """Step for at least `request.num_steps` environment steps; the episodes that finished.

        At a control rate an episode is handed over as soon as it ends: a robot that goes loses the
        open one at most.
        """
        updates = request.weights_updates
        if request.weights is not None:
            self.take_weights(request.weights)
            updates = self.weights_updates
        finished, stepped = FinishedEpisodes(), 0
        if self._streams is None:
            attend(self.config.intervention, self.env.unwrapped)
            observation, _ = self._try_env_reset(seed=int(self._rng.integers(2**31)), options=None)
            self._needs_initial_reset = True  # `sample()` cannot go on with its episodes
            self._streams = self.start_streams(request, observation)
        clock = self.env.clock
        while stepped < request.num_steps and not (clock and finished.summaries):
            stepped += self._streams.step(self._step_env, request, updates, finished)
        self._log_rollout(stepped, finished, request.base_only)
        columns, lengths = concatenate_episodes(finished.columns)
        return EpisodeBatch(
            columns,
            lengths,
            finished.summaries,
            stepped,
            self._streams.oldest_start,
            self._due_metrics(request.metrics_interval_s),
            request.generation,
            *(clock.take() if clock else (0, 0)),
        )

    def sample_to_store(self, request: SampleRequest) -> EpisodeBatch:
        """`sample_episodes` of a remote runner. Where learners are processes of their own, the
        columns stay in the object store for them; else they come along: what the driver counts, it
        has.

        If it takes longer than `request.stall_timeout_s`, this process ends with its threads'
        stacks in its log.
        """
        if request.stall_timeout_s is not None:
            # a thread in C: it needs no interpreter lock, which a stuck simulator may hold
            faulthandler.dump_traceback_later(request.stall_timeout_s, exit=True)
        try:
            batch = self.sample_episodes(request)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if not batch.episode_lengths or self.config.num_learners == 0:
            return batch
        return replace(batch, columns=ray.put(batch.columns))

    def _due_metrics(self, interval_s: float) -> Any:
        """This runner's metrics since they were last sent; None if that was just now."""
        if time.monotonic() - self._metrics_sent < interval_s:
            return None
        self._metrics_sent = time.monotonic()
        return self.get_metrics()

    def describe_environment(self) -> tuple[Wanted, str]:
        """What a dataset must have to be played by this runner's networks and base policy; and the
        task, in words."""
        env: BaseActionVectorEnv = self.env.unwrapped
        cameras = [*self.module.networks.image_columns, *env.base_policy.input_features]
        config, space = self.config.env_config, env.group.observation_space
        wanted = factory.wanted_of(space, env.single_action_space, cameras, config)
        (task,) = factory.task_instructions(config)
        return wanted, task

    def person(self, request: SampleRequest) -> Intervenor | None:
        """Who may take over in the episodes to come; whoever was there before has let go."""
        self._let_go()
        if request.intervene:
            env, intervention = self.env.unwrapped, self.config.intervention
            self._intervenor = make_intervenor(intervention, env, self._rng)
            if self._on_wait is not None:
                self.end_waits_with(self._on_wait)
        return self._intervenor

    def end_waits_with(self, check: Callable[[], None]) -> None:
        """Call this again and again while a person is waited for, at a robot or in a pause; it may
        raise."""
        self._on_wait = check
        for robot in self.env.unwrapped.robots:
            robot.arm.person.on_wait = check
        if isinstance(self._intervenor, DevicePerson):
            self._intervenor.on_wait = check

    def view(self) -> LiveView | None:
        """Where the first environment is shown; of the first runner alone."""
        if self._view is None and (self.worker_index or 0) < 2:
            self._view = open_view(self.config.intervention)
        return self._view

    def _let_go(self) -> None:
        """No person is at the environments any more."""
        if self._intervenor is not None:
            self._intervenor.close()
            self._intervenor = None

    def _step_env(self, action: np.ndarray) -> Any:
        """One step; RLlib's bookkeeping, a quarter of its time, is done once a request."""
        started = time.perf_counter()
        results = self.env.step(action)
        self._env_step_s += time.perf_counter() - started
        self._num_env_steps += 1
        return results

    def _log_rollout(self, stepped: int, finished: FinishedEpisodes, base_only: bool) -> None:
        self._increase_sampled_metrics(stepped, len(finished.summaries))
        if self._num_env_steps:
            self._log_env_steps(self._metrics_num_try_env_step, self._num_env_steps)
            self.metrics.log_value(ENV_STEP_TIMER, self._env_step_s / self._num_env_steps)
            self._env_step_s, self._num_env_steps = 0.0, 0
        for _ in range(finished.num_env_failures):
            self.metrics.log_value("num_env_failures", 1, reduce="lifetime_sum")
        for episode in finished.summaries:
            self._log_episode_metrics(episode.length, episode.sum_reward, 0.0)
            if not base_only and episode.residual_acted:
                name = "assisted_success_rate" if episode.intervened else "success_rate"
                self.metrics.log_value(name, float(episode.success), window=50)
            self.metrics.log_value("probe_steps_mean", float(episode.probe_steps), window=50)

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate(self, init_state_ids: list[int], contestant: Contestant) -> list[EpisodeResult]:
        """One deterministic episode from each stored init state, on an environment of its own.

        Args:
            init_state_ids: ids of held init states of the task.
            contestant: who plays.

        Returns:
            One result per id, in their order.
        """
        if contestant.weights is not None:
            self.take_weights(contestant.weights)
        if self._evaluation_env is None:
            config = {**factory.for_evaluation(self.config.env_config), "num_envs": self.num_envs}
            made = factory.make_env(self.config.env, config)
            self._evaluation_env = InfosPerEnv(made, self._make_clock())
            attend(self.config.intervention, self._evaluation_env.unwrapped)
        results = self.play(self._evaluation_env, init_state_ids, contestant)
        return [results[i] for i in init_state_ids]

    def stop(self) -> None:
        with contextlib.ExitStack() as left:  # one that cannot be closed keeps none of the others
            if self._evaluation_env is not None:
                left.callback(self._evaluation_env.close)
            left.callback(super().stop)
            if self._view is not None:
                left.callback(self._view.close)
            left.callback(self._let_go)


class ResidualEnvRunner(OffPolicyEnvRunner):
    """Steps base + residual."""

    def make_module(self) -> None:
        super().make_module()
        self._actor = Actor(self.module.networks)

    def label_episodes(self, episodes: list[Columns], task: str) -> list[Columns]:
        """Base actions of recorded episodes, and gripper labels where a critic needs them.

        Args:
            episodes: each [L + 1, ...]; what they have already is not made.
            task: the instruction, in words.
        """
        env: BaseActionVectorEnv = self.env.unwrapped
        space: Any = env.single_action_space
        bare = [episode for episode in episodes if BASE_ACTION not in episode]
        made = iter(with_base_actions(bare, env.base_policy, task, space, env.prefetch))
        labelled = [e if BASE_ACTION in e else next(made) for e in episodes]
        labelled = with_gripper_labels(labelled, self.params, space)
        pairs = zip(episodes, labelled, strict=True)
        return [{k: v for k, v in after.items() if k not in before} for before, after in pairs]

    def play(
        self, env: InfosPerEnv, init_state_ids: list[int], contestant: Contestant
    ) -> dict[int, EpisodeResult]:
        scale = self.module.networks.residual_scale
        in_force = scale.clone()
        try:
            if contestant.residual_scale is not None:
                scale.fill_(contestant.residual_scale)
            return play_init_states(env, init_state_ids, self._act if contestant.residual else None)
        finally:
            scale.copy_(in_force)

    def film(self, init_state_id: int, weights: PublishedWeights) -> Film:
        """One init state, base beside base + residual; the latter alone without a base policy."""
        self.take_weights(weights)
        config = self.config
        settings = factory.for_evaluation(config.env_config)
        compares = config.base_policy_options.type != "none"
        return film_init_state(config.env, settings, init_state_id, self._act, compares)

    def _act(self, observation: Observation) -> np.ndarray:
        return self._actor.act(observation)[0]
