"""The open episodes of a runner: warm-up, probing, composition, one vector step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from pld_ray.networks.grippers import hold_all, num_joint_choices
from pld_ray.rollout.acting import Actor
from pld_ray.rollout.episode import Columns, EpisodeBuilder
from pld_ray.rollout.evaluation import EpisodeResult
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.vector_env import BASE_ACTION, Observation


@dataclass
class Ended:
    """Episodes that have ended: the stored part of each, what became of all, and the failed."""

    columns: list[Columns] = field(default_factory=list)
    results: list[EpisodeResult] = field(default_factory=list)
    num_env_failures: int = 0


@dataclass(slots=True)
class _Open:
    """The episode that an environment is in."""

    probe: int
    """Steps that the base policy takes first, which are not stored (formula 25)."""
    builder: EpisodeBuilder = field(default_factory=EpisodeBuilder)
    steps: int = 0
    sum_reward: float = 0.0
    weights_updates: int = 0

    def result(self, success: bool) -> EpisodeResult:
        """What has become of it."""
        return EpisodeResult(
            success=success,
            length=self.steps,
            sum_reward=self.sum_reward,
            probe_steps=min(self.probe, self.steps),
            weights_updates=self.weights_updates,
        )


class Streams:
    """One open episode per environment.

    Args:
        observation: of the environments after their reset [N, ...].
        action_space: of one environment.
        params: `ResidualSACParams`: probing, exploration, warm-up and gripper settings.
        actor: composes base action and residual.
        rng: of probing lengths, exploration and random actions.
        base_only: as for `step`.
    """

    def __init__(
        self,
        observation: Observation,
        action_space: gym.spaces.Box,
        params: Any,
        actor: Actor,
        rng: np.random.Generator,
        base_only: bool,
    ) -> None:
        self._params, self._actor, self._rng = params, actor, rng
        self._low, self._high = action_space.low, action_space.high
        self._discrete = params.gripper == "discrete"
        self._hold = hold_all(len(params.gripper_dims)) if self._discrete else 0
        n, action_dim = observation[BASE_ACTION].shape
        self._noise = ExplorationNoise(
            params.exploration_noise,
            n,
            action_dim,
            rng,
            params.exploration_rho,
            params.exploration_hold,
        )
        self._observation = observation
        self._open = [_Open(self._draw_probe(base_only)) for _ in range(n)]
        self._resetting = [False] * n
        self._command = np.full((n, len(params.gripper_dims)), np.nan)

    def step(
        self,
        step_env: Callable[[np.ndarray], Any],
        base_only: bool,
        weights_updates: int,
        ended: Ended,
    ) -> int | None:
        """One step of every environment.

        Args:
            step_env: actions [N, A] -> observation, reward, terminated, truncated, infos; None if
                all environments had to be replaced.
            base_only: act as the base policy alone (offline collection, warm-up).
            weights_updates: gradient updates behind the weights that the actor has now.
            ended: takes the episodes that end in this step.

        Returns:
            Environment steps taken: resets and failures are none. None if `step_env` gave None;
            the open episodes are lost then.
        """
        observation = self._observation
        beta = self._actor.residual_scale
        takeover = [not base_only and e.steps >= e.probe for e in self._open]
        action, choice = self._action(observation, np.array(takeover), base_only)
        extra = self._gripper_columns(action, choice)

        results = step_env(action)
        if results is None:
            return None
        self._observation, reward, terminated, truncated, infos = results

        taken = 0
        for i, episode in enumerate(self._open):
            if self._resetting[i]:  # the action was ignored
                self._resetting[i] = False
                continue
            if episode.steps == 0:
                episode.weights_updates = weights_updates
            if episode.steps >= episode.probe:
                episode.builder.add(
                    observation,
                    i,
                    action[i],
                    reward[i],
                    terminated[i],
                    truncated[i],
                    beta if takeover[i] else 0.0,
                    extra={name: column[i] for name, column in extra.items()},
                )
            episode.steps += 1
            episode.sum_reward += float(reward[i])
            failed = "env_failure" in infos[i]
            taken += not failed
            if not (terminated[i] or truncated[i]):
                continue
            if failed:  # its last step is not known
                ended.num_env_failures += 1
            else:
                if len(episode.builder):
                    ended.columns.append(episode.builder.finish(self._observation, i))
                ended.results.append(episode.result(bool(infos[i]["is_success"])))
            self._begin(i, base_only)
        return taken

    def _action(
        self, observation: Observation, takeover: np.ndarray, base_only: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions [N, A] and joint gripper choices [N]; `hold` where the base policy decides."""
        action = observation[BASE_ACTION].copy()
        choice = np.full(len(action), self._hold, dtype=np.int64)
        if base_only and self._params.warmup_actions == "random":
            action = self._rng.uniform(self._low, self._high, action.shape).astype(np.float32)
        if takeover.any():
            noise = self._noise.sample()
            forced = self._random_choices(len(action)) if self._discrete else None
            composed, chosen = self._actor.act(observation, noise, forced)
            action = np.where(takeover[:, None], composed, action)
            if chosen is not None:
                choice[takeover] = chosen[takeover]
        return action, choice

    def _random_choices(self, n: int) -> np.ndarray:
        """A random joint choice with probability gripper_epsilon, else -1 (the best one) [n]."""
        random = self._rng.integers(num_joint_choices(len(self._params.gripper_dims)), size=n)
        return np.where(self._rng.random(n) < self._params.gripper_epsilon, random, -1)

    def _gripper_columns(self, action: np.ndarray, choice: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of discrete grippers: the joint choice, and its penalty where a command changed.

        The last executed commands are NaN at an episode's start.
        """
        if not self._discrete:
            return {}
        command = np.sign(action[:, self._params.gripper_dims])
        changed = (command != self._command) & ~np.isnan(self._command)
        self._command = command
        return {
            "discrete_action": choice.astype(np.float32),
            "discrete_penalty": (-self._params.grasp_penalty * changed.sum(1)).astype(np.float32),
        }

    def _begin(self, i: int, base_only: bool) -> None:
        self._resetting[i] = True
        self._noise.reset(i)
        self._command[i] = np.nan
        self._open[i] = _Open(self._draw_probe(base_only))

    def _draw_probe(self, base_only: bool) -> int:
        """h ~ Unif{0..H_probe} (formula 22); base-only phases store everything."""
        if base_only or not self._params.use_probing:
            return 0
        return int(self._rng.integers(self._params.probe_steps + 1))
