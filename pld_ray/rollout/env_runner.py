"""The env runner: warm-up, probing, composition, in that order, one vector step at a time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import ray
import torch
from gymnasium.wrappers.vector import DictInfoToList
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from pld_ray.networks.grippers import hold_all, num_joint_choices
from pld_ray.rollout.episode import Columns, EpisodeBuilder, concatenate_episodes
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.vector_env import BASE_ACTION, Observation


@dataclass
class EpisodeResult:
    """What became of one episode."""

    success: bool
    length: int
    sum_reward: float
    probe_steps: int = 0
    init_state_id: int = -1


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
    gripper: np.ndarray
    """Last executed command of each discrete gripper [num_envs, G]; NaN at an episode's start."""


class ResidualEnvRunner(SingleAgentEnvRunner):
    """Steps base + residual and returns finished episodes as flat columns.

    The inherited `sample()` (RLlib episodes) keeps working: the module composes the action.
    """

    _streams: _Streams | None = None
    _evaluation_env: DictInfoToList | None = None
    _rng: np.random.Generator
    params: Any  # ResidualSACParams

    def make_env(self) -> None:
        super().make_env()
        self._streams = None
        self.params = self.config.residual_sac_params()
        if not hasattr(self, "_rng"):  # kept when a failed environment is rebuilt
            self._rng = np.random.default_rng([self.config.seed or 0, self.worker_index or 0])

    def restart_streams(self, seed: int) -> None:
        """Drop the open episodes and start anew from `seed` (mixed with the runner's index)."""
        self._rng = np.random.default_rng([seed, self.worker_index or 0])
        self._streams = None

    def forget_weights_version(self) -> None:
        """Take the next weights whatever their number: a restored checkpoint may be older."""
        self._weights_seq_no = 0

    # --- training --------------------------------------------------------------------------------

    def sample_columns(self, num_steps: int, base_only: bool) -> dict[str, Any]:
        """Step for at least `num_steps` environment steps; return the episodes that finished.

        Args:
            num_steps: environment steps over all environments of this runner.
            base_only: act as the base policy alone (offline collection, warm-up).

        Returns:
            `columns` and `episode_lengths` (see `EpisodeBuilder`), `episodes` (a dict each),
            `num_env_steps` stepped now, probing included, and this runner's `metrics`.
        """
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
            "metrics": self.get_metrics(),
        }

    def sample_columns_ref(self, num_steps: int, base_only: bool) -> dict[str, Any]:
        """`sample_columns` with the columns left in the object store, for the learner to fetch."""
        batch = self.sample_columns(num_steps, base_only)
        batch["columns"] = ray.put(batch["columns"])
        return batch

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

        results = self._try_env_step(action)
        if isinstance(results, str) and results == ENV_STEP_FAILURE:
            self._streams = None
            return 0
        next_observation, reward, terminated, truncated, infos = results

        live = ~s.resetting
        done = (terminated | truncated) & live
        for i in np.flatnonzero(live):
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
                if len(s.builders[i]):
                    finished.append(s.builders[i].finish(next_observation, i))
                episodes.append(
                    EpisodeResult(
                        success=bool(infos[i]["is_success"]),
                        length=int(s.steps[i]),
                        sum_reward=float(s.returns[i]),
                        probe_steps=int(min(s.probe[i], s.steps[i])),
                    )
                )
                s.noise.reset(i)
                s.gripper[i] = np.nan
                s.steps[i], s.returns[i] = 0, 0.0
                s.probe[i] = self._draw_probe(base_only)
        s.resetting = done
        s.observation = next_observation
        return int(live.sum())

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

    @torch.inference_mode()
    def _composed_action(
        self, observation: Observation, noise: np.ndarray | None = None, explore: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """a = clip(a_base + beta * delta) (formulas 2-4), and the discrete grippers' joint choice.

        `noise` None takes the mean; `explore` lets discrete grippers choose at random now and then.
        """
        batch = {key: torch.from_numpy(value) for key, value in observation.items()}
        forced = None
        if explore and self.params.gripper == "discrete":
            forced = torch.from_numpy(self._random_choices(len(observation[BASE_ACTION])))
        action, choice = self.module.act_and_choose(
            batch, None if noise is None else torch.from_numpy(noise), forced
        )
        return action.numpy(), None if choice is None else choice.numpy()

    def _random_choices(self, n: int) -> np.ndarray:
        """A random joint choice with probability gripper_epsilon, else -1 (the best one) [n]."""
        random = self._rng.integers(num_joint_choices(len(self.params.gripper_dims)), size=n)
        return np.where(self._rng.random(n) < self.params.gripper_epsilon, random, -1)

    def _log_rollout(self, stepped: int, episodes: list[EpisodeResult]) -> None:
        self._increase_sampled_metrics(stepped, len(episodes))
        for episode in episodes:
            self._log_episode_metrics(episode.length, episode.sum_reward, 0.0)
            self.metrics.log_value("success_rate", float(episode.success), window=50)
            self.metrics.log_value("probe_steps_mean", float(episode.probe_steps), window=50)

    # --- evaluation ------------------------------------------------------------------------------

    def evaluate(self, init_state_ids: list[int], residual: bool) -> list[dict[str, Any]]:
        """One deterministic episode from each stored init state, on an environment of its own.

        Args:
            init_state_ids: ids of held init states of the task.
            residual: base + tanh(mean) at the current beta, or the base policy alone.

        Returns:
            One `EpisodeResult` as a dict per id, in the order of `init_state_ids`.
        """
        if self._evaluation_env is None:
            config = {**self.config.env_config, "num_envs": self.num_envs}
            self._evaluation_env = DictInfoToList(create_vector_env(config))
        env: Any = self._evaluation_env
        env.unwrapped.set_init_states(init_state_ids)
        observation, infos = env.reset(seed=0)
        current = [int(info["init_state_id"]) for info in infos]
        steps = np.zeros(env.num_envs, dtype=np.int64)
        returns = np.zeros(env.num_envs)
        done = np.zeros(env.num_envs, dtype=bool)
        results: dict[int, EpisodeResult] = {}
        while len(results) < len(set(init_state_ids)):
            action = observation[BASE_ACTION]
            if residual:
                action, _ = self._composed_action(observation)
            observation, reward, terminated, truncated, infos = env.step(action)
            for i in range(env.num_envs):
                if done[i]:  # this was the reset step
                    current[i] = int(infos[i]["init_state_id"])
                    steps[i], returns[i] = 0, 0.0
                    continue
                steps[i] += 1
                returns[i] += reward[i]
                if (terminated[i] or truncated[i]) and current[i] >= 0:
                    results[current[i]] = EpisodeResult(
                        success=bool(infos[i]["is_success"]),
                        length=int(steps[i]),
                        sum_reward=float(returns[i]),
                        init_state_id=current[i],
                    )
            done = (terminated | truncated) & ~done
        return [asdict(results[i]) for i in init_state_ids]

    def stop(self) -> None:
        super().stop()
        if self._evaluation_env is not None:
            self._evaluation_env.close()
