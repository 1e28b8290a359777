"""The env runner: warm-up, probing, composition, in that order, one vector step at a time."""

from __future__ import annotations

import faulthandler
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import ENV_STEP_TIMER

from pld_ray.networks.grippers import hold_all, num_joint_choices
from pld_ray.networks.numpy_actor import NumpyActor
from pld_ray.rollout import factory
from pld_ray.rollout.episode import Columns, EpisodeBuilder, concatenate_episodes
from pld_ray.rollout.evaluation import EpisodeResult, play_init_states
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.messages import PublishedWeights, describe_error
from pld_ray.rollout.vector_env import BASE_ACTION, InfosPerEnv, Observation
from pld_ray.rollout.video import film_init_state

METRICS_INTERVAL_S = 1.0


@dataclass
class _Streams:
    """The open episodes of all environments between two calls."""

    observation: Observation
    builders: list[EpisodeBuilder]
    noise: ExplorationNoise
    steps: np.ndarray
    probe: np.ndarray
    returns: np.ndarray
    resetting: np.ndarray
    began_at: np.ndarray
    """Updates behind the weights with which each open episode began [num_envs]."""
    gripper: np.ndarray
    """Last executed command of each discrete gripper [num_envs, G]; NaN at an episode's start."""


class ResidualEnvRunner(SingleAgentEnvRunner):
    """Steps base + residual and returns finished episodes as flat columns.

    The inherited `sample()` (RLlib episodes) keeps working: the module composes the action.
    """

    env: Any
    _streams: _Streams | None = None
    _evaluation_env: InfosPerEnv | None = None
    _numpy_actor: NumpyActor | None = None
    _weights_updates = 0
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
        stands_for = NumpyActor.stands_for(self.module)
        self._numpy_actor = NumpyActor(self.module) if stands_for else None

    def restart_streams(self, seed: int) -> None:
        """Drop the open episodes and start anew from `seed` (mixed with the runner's index)."""
        self._rng = np.random.default_rng([seed, self.worker_index or 0])
        self._streams = None

    def forget_weights_version(self) -> None:
        """Take the next weights whatever their number: a restored checkpoint may be older."""
        self._weights_seq_no = 0

    # --- training --------------------------------------------------------------------------------

    def sample_columns(
        self, num_steps: int, base_only: bool, weights_updates: int = 0
    ) -> dict[str, Any]:
        """Step for at least `num_steps` environment steps; return the episodes that finished.

        Args:
            num_steps: environment steps over all environments of this runner.
            base_only: act as the base policy alone (offline collection, warm-up).
            weights_updates: gradient updates behind the weights that the runner has now.

        Returns:
            `columns` and `episode_lengths` (see `EpisodeBuilder`), `episodes` (a dict each),
            `num_env_steps` stepped now, probing included, and this runner's `metrics`.
        """
        self._weights_updates = weights_updates
        if self._streams is None:
            self._streams = self._start_streams(base_only)
        finished: list[Columns] = []
        episodes: list[EpisodeResult] = []
        stepped = 0
        while stepped < num_steps:
            stepped += self._vector_step(self._streams, base_only, finished, episodes)
            if self._streams is None:  # the environment failed and was rebuilt
                self._streams = self._start_streams(base_only)
        self._log_rollout(stepped, episodes)
        columns, lengths = concatenate_episodes(finished)
        return {
            "columns": columns,
            "episode_lengths": lengths,
            "episodes": [asdict(episode) for episode in episodes],
            "num_env_steps": stepped,
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

    def _vector_step(
        self,
        s: _Streams,
        base_only: bool,
        finished: list[Columns],
        episodes: list[EpisodeResult],
    ) -> int:
        observation = s.observation
        beta = float(self.module.residual_scale)
        probing = s.steps < s.probe
        takeover = ~probing & (not base_only)
        action = observation[BASE_ACTION].copy()
        if base_only and self.params.warmup_actions == "random":
            action = self._rng.uniform(self._low, self._high, action.shape).astype(np.float32)
        choice = np.full(len(action), self._hold, dtype=np.int64)
        if takeover.any():
            composed, chosen = self._composed_action(observation, s.noise.sample(), explore=True)
            action[takeover] = composed[takeover]
            if chosen is not None:
                choice[takeover] = chosen[takeover]
        extra = self._gripper_columns(s, action, choice)

        results = self._step_env(action)
        if isinstance(results, str) and results == ENV_STEP_FAILURE:
            self._streams = None
            return 0
        next_observation, reward, terminated, truncated, infos = results

        live = ~s.resetting
        done = (terminated | truncated) & live
        failed = np.array(["env_failure" in info for info in infos])
        for i in np.flatnonzero(live):
            if s.steps[i] == 0:
                s.began_at[i] = self._weights_updates
            if not probing[i]:  # probing steps are never stored (formula 25)
                s.builders[i].add(
                    observation,
                    i,
                    action[i],
                    reward[i],
                    terminated[i],
                    truncated[i],
                    beta if takeover[i] else 0.0,
                    extra={name: column[i] for name, column in extra.items()},
                )
            s.steps[i] += 1
            s.returns[i] += reward[i]
            if done[i]:
                if failed[i]:
                    s.builders[i] = EpisodeBuilder()  # what the simulator did last is not known
                    self.metrics.log_value("num_env_failures", 1, reduce="lifetime_sum")
                else:
                    if len(s.builders[i]):
                        finished.append(s.builders[i].finish(next_observation, i))
                    episodes.append(
                        EpisodeResult(
                            success=bool(infos[i]["is_success"]),
                            length=int(s.steps[i]),
                            sum_reward=float(s.returns[i]),
                            probe_steps=int(min(s.probe[i], s.steps[i])),
                            weights_updates=int(s.began_at[i]),
                        )
                    )
                s.noise.reset(i)
                s.gripper[i] = np.nan
                s.steps[i], s.returns[i] = 0, 0.0
                s.probe[i] = self._draw_probe(base_only)
        s.resetting = done
        s.observation = next_observation
        return int((live & ~failed).sum())

    def _step_env(self, action: np.ndarray) -> Any:
        """RLlib's `_try_env_step`; its bookkeeping, a quarter of a step, is done once a request."""
        if self.config.restart_failed_sub_environments:
            return self._try_env_step(action)
        started = time.perf_counter()
        results = self.env.step(action)
        self._env_step_s += time.perf_counter() - started
        self._num_env_steps += 1
        return results

    def _start_streams(self, base_only: bool) -> _Streams:
        observation, _ = self._try_env_reset(seed=int(self._rng.integers(2**31)), options=None)
        space = self.env.single_action_space
        n, action_dim = self.num_envs, space.shape[0]
        p = self.params
        self._low, self._high = space.low, space.high
        self._hold = hold_all(len(p.gripper_dims)) if p.gripper == "discrete" else 0
        return _Streams(
            observation=observation,
            builders=[EpisodeBuilder() for _ in range(n)],
            noise=ExplorationNoise(
                p.exploration_noise,
                n,
                action_dim,
                self._rng,
                p.exploration_rho,
                p.exploration_hold,
            ),
            steps=np.zeros(n, dtype=np.int64),
            probe=np.array([self._draw_probe(base_only) for _ in range(n)]),
            returns=np.zeros(n),
            resetting=np.zeros(n, dtype=bool),
            began_at=np.zeros(n, dtype=np.int64),
            gripper=np.full((n, len(p.gripper_dims)), np.nan),
        )

    def _draw_probe(self, base_only: bool) -> int:
        """h ~ Unif{0..H_probe} (formula 22); base-only phases store everything."""
        if base_only or not self.params.use_probing:
            return 0
        return int(self._rng.integers(self.params.probe_steps + 1))

    def _gripper_columns(
        self, s: _Streams, action: np.ndarray, choice: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Columns of discrete grippers: the joint choice, and its penalty where a command changed.

        A choice of a step that the base policy alone decided is `hold`.
        """
        if self.params.gripper != "discrete":
            return {}
        command = np.sign(action[:, self.params.gripper_dims])
        changed = (command != s.gripper) & ~np.isnan(s.gripper)
        s.gripper = command
        return {
            "discrete_action": choice.astype(np.float32),
            "discrete_penalty": (-self.params.grasp_penalty * changed.sum(1)).astype(np.float32),
        }

    def _composed_action(
        self, observation: Observation, noise: np.ndarray | None = None, explore: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """a = clip(a_base + beta * delta) (formulas 2-4), and the discrete grippers' joint choice.

        `noise` None takes the mean; `explore` lets discrete grippers choose at random now and then.
        """
        if self._numpy_actor is not None:
            columns = [observation[key] for key in self.module.observation_keys]
            vector = np.concatenate(columns, axis=-1, dtype=np.float32)
            return self._numpy_actor.act(vector, observation[BASE_ACTION], noise), None
        forced = None
        if explore and self.params.gripper == "discrete":
            forced = torch.from_numpy(self._random_choices(len(observation[BASE_ACTION])))
        with torch.inference_mode():
            action, choice = self.module.act_and_choose(
                {key: torch.from_numpy(value) for key, value in observation.items()},
                None if noise is None else torch.from_numpy(noise),
                forced,
            )
        return action.numpy(), None if choice is None else choice.numpy()

    def _random_choices(self, n: int) -> np.ndarray:
        """A random joint choice with probability gripper_epsilon, else -1 (the best one) [n]."""
        random = self._rng.integers(num_joint_choices(len(self.params.gripper_dims)), size=n)
        return np.where(self._rng.random(n) < self.params.gripper_epsilon, random, -1)

    def _log_rollout(self, stepped: int, episodes: list[EpisodeResult]) -> None:
        self._increase_sampled_metrics(stepped, len(episodes))
        if self._num_env_steps:
            self._log_env_steps(self._metrics_num_try_env_step, self._num_env_steps)
            self.metrics.log_value(ENV_STEP_TIMER, self._env_step_s / self._num_env_steps)
            self._env_step_s, self._num_env_steps = 0.0, 0
        for episode in episodes:
            self._log_episode_metrics(episode.length, episode.sum_reward, 0.0)
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
                (lambda observation: self._composed_action(observation)[0]) if residual else None,
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
                lambda observation: self._composed_action(observation)[0],
            )
        except Exception as error:
            return {"error": describe_error(error)}

    def stop(self) -> None:
        super().stop()
        if self._evaluation_env is not None:
            self._evaluation_env.close()
