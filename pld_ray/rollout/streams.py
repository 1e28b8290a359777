"""The open episodes of a runner: warm-up, probing, composition, one vector step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.columns import BASE_ACTION, Columns
from pld_ray.rollout.episode import EpisodeBuilder, EpisodeSummary
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.gripper_record import GripperRecord
from pld_ray.rollout.vector_env import Observation


@dataclass
class FinishedEpisodes:
    """The stored part of each, a summary of all, and how many were lost to a failed simulator."""

    columns: list[Columns] = field(default_factory=list)
    summaries: list[EpisodeSummary] = field(default_factory=list)
    num_env_failures: int = 0


@dataclass(slots=True)
class _Open:
    """The episode that an environment is in."""

    env_index: int
    start: int
    probe: int
    """Steps that the base policy takes first, which are not stored (formula 25)."""
    builder: EpisodeBuilder = field(default_factory=EpisodeBuilder)
    steps: int = 0
    sum_reward: float = 0.0
    weights_updates: int = 0

    def summary(self, success: bool) -> EpisodeSummary:
        """What has become of it."""
        return EpisodeSummary(
            success=success,
            length=self.steps,
            sum_reward=self.sum_reward,
            probe_steps=min(self.probe, self.steps),
            weights_updates=self.weights_updates,
            start=self.start,
            env_index=self.env_index,
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
        n, action_dim = observation[BASE_ACTION].shape
        discrete = params.gripper == "discrete"
        self._grippers = GripperRecord(params, self._low, self._high, n) if discrete else None
        self._noise = ExplorationNoise(
            params.exploration_noise,
            n,
            action_dim,
            rng,
            params.exploration_rho,
            params.exploration_hold,
        )
        self._observation = observation
        self._clock = 0
        self._open = [_Open(i, 0, self._draw_probe(base_only)) for i in range(n)]
        self._resetting = [False] * n

    def step(
        self,
        step_env: Callable[[np.ndarray], Any],
        base_only: bool,
        weights_updates: int,
        finished: FinishedEpisodes,
        random_actions: bool = False,
    ) -> int:
        """One step of every environment.

        Args:
            step_env: actions [N, A] -> observation, reward, terminated, truncated, infos.
            base_only: act as the base policy alone (offline collection, warm-up).
            weights_updates: gradient updates behind the weights that the actor has now.
            finished: takes the episodes that end in this step.
            random_actions: with `base_only`, uniform actions in place of the base policy's.

        Returns:
            Environment steps taken: resets and failures are none.
        """
        observation = self._observation
        beta = self._actor.residual_scale
        takeover = [not base_only and e.steps >= e.probe for e in self._open]
        action, chosen = self._action(observation, np.array(takeover), random_actions)
        extra = self._gripper_columns(action, chosen)

        self._observation, reward, terminated, truncated, infos = step_env(action)
        self._clock += 1

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
                finished.num_env_failures += 1
            else:
                if len(episode.builder):
                    finished.columns.append(episode.builder.finish(self._observation, i))
                finished.summaries.append(episode.summary(bool(infos[i]["is_success"])))
            self._begin(i, base_only)
        return taken

    @property
    def oldest_start(self) -> int:
        """`start` of the open episode that began first."""
        return min(episode.start for episode in self._open)

    def _action(
        self, observation: Observation, takeover: np.ndarray, random_actions: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions [N, A], and the joint gripper choices [N] that the critic made, else -1."""
        base_action = observation[BASE_ACTION]
        action, chosen = base_action.copy(), np.full(len(base_action), -1)
        if random_actions:
            action = self._rng.uniform(self._low, self._high, action.shape).astype(np.float32)
            if self._grippers is not None:
                drawn = self._grippers.draw(self._rng, len(action))
                action = self._grippers.commanded(action, base_action, drawn)
        if takeover.any():
            noise = self._noise.sample()
            composed, joint = self._actor.act(observation, noise, self._explored(len(action)))
            action = np.where(takeover[:, None], composed, action)
            if joint is not None:
                chosen[takeover] = joint[takeover]
        return action, chosen

    def _explored(self, n: int) -> np.ndarray | None:
        """A random joint choice with probability gripper_epsilon, else -1 (the best one) [n]."""
        if self._grippers is None:
            return None
        random = self._grippers.draw(self._rng, n)
        return np.where(self._rng.random(n) < self._params.gripper_epsilon, random, -1)

    def _gripper_columns(self, action: np.ndarray, chosen: np.ndarray) -> dict[str, np.ndarray]:
        if self._grippers is None:
            return {}
        stepped = ~np.array(self._resetting)
        return self._grippers.columns(action, self._observation[BASE_ACTION], chosen, stepped)

    def _begin(self, i: int, base_only: bool) -> None:
        self._resetting[i] = True
        self._noise.reset(i)
        if self._grippers is not None:
            self._grippers.reset(i)
        self._open[i] = _Open(i, self._clock, self._draw_probe(base_only))

    def _draw_probe(self, base_only: bool) -> int:
        """h ~ Unif{0..H_probe} (formula 22); base-only phases store everything."""
        if base_only or not self._params.use_probing:
            return 0
        return int(self._rng.integers(self._params.probe_steps + 1))
