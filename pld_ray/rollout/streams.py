"""The open episodes of a runner: probing, composition, interventions, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.columns import BASE_ACTION, Columns
from pld_ray.rollout.episode import EpisodeBuilder, EpisodeSummary
from pld_ray.rollout.exploration import ExplorationNoise
from pld_ray.rollout.gripper_record import GripperRecord
from pld_ray.rollout.intervention import NOTHING, Intervenor, Turn, Verdict
from pld_ray.rollout.live_view import LiveView
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.vector_env import BaseActionVectorEnv, Observation


class Expert(Protocol):
    """Acts from the simulator's own state, see `envs.experts`."""

    def reset(self, rng: np.random.Generator) -> None:
        """Look at the scene after a reset."""

    def act(self) -> np.ndarray:
        """The next action [A] float32."""


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
    in_hand: bool = False
    """A person acts."""
    intervention_count: int = 0
    intervention_steps: int = 0

    def take_over(self) -> None:
        """A person acts in the step to come; probing is over."""
        self.intervention_count += not self.in_hand
        self.intervention_steps += 1
        self.in_hand = True
        self.probe = min(self.probe, self.steps)

    def summary(self, success: bool, true_success: bool | None) -> EpisodeSummary:
        """What has become of it."""
        return EpisodeSummary(
            success=success,
            length=self.steps,
            sum_reward=self.sum_reward,
            probe_steps=min(self.probe, self.steps),
            weights_updates=self.weights_updates,
            start=self.start,
            env_index=self.env_index,
            intervention_count=self.intervention_count,
            intervention_steps=self.intervention_steps,
            true_success=true_success,
        )


REWARDS: dict[Verdict, float] = {"success": 1.0, "failure": 0.0, "discard": 0.0}


class Streams:
    """One open episode per environment.

    Args:
        observation: of the environments after their reset [N, ...].
        action_space: of one environment.
        params: `ResidualSACParams`: probing, exploration, warm-up and gripper settings.
        actor: composes base action and residual.
        rng: of probing lengths, exploration and random actions.
        base_only: as for `step`.
        make_expert: environment -> its expert, for requests that ask for them. Asked anew for each
            episode: an environment that failed has been replaced.
        intervenor: a person, for requests that let one take over.
        env: the environments, whose base policy starts afresh when the person lets go.
        view: shows the first environment.
    """

    def __init__(
        self,
        observation: Observation,
        action_space: gym.spaces.Box,
        params: Any,
        actor: Actor,
        rng: np.random.Generator,
        base_only: bool,
        make_expert: Callable[[int], Expert] | None = None,
        intervenor: Intervenor | None = None,
        env: BaseActionVectorEnv | None = None,
        view: LiveView | None = None,
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
        self._make_expert = make_expert
        self._experts: dict[int, Expert] = {}
        self._intervenor, self._env, self._view = intervenor, env, view
        for i in range(n):
            self._look(i)

    def step(
        self,
        step_env: Callable[[np.ndarray], Any],
        request: SampleRequest,
        weights_updates: int,
        finished: FinishedEpisodes,
    ) -> int:
        """One step of every environment.

        Args:
            step_env: actions [N, A] -> observation, reward, terminated, truncated, infos.
            request: who acts, and what is kept; of one episode the same in every step.
            weights_updates: gradient updates behind the weights that the actor has now.
            finished: takes the episodes that end in this step.

        Returns:
            Environment steps taken: resets and failures are none.
        """
        turn = self._hand_over(request)
        observation = self._observation
        beta = self._actor.residual_scale
        takeover = [
            not request.base_only and e.steps >= e.probe and not e.in_hand for e in self._open
        ]
        action, chosen = self._action(observation, np.array(takeover), request)
        for i, executed in turn.actions.items():
            action[i] = np.clip(executed, self._low, self._high)
        extra = self._gripper_columns(action, chosen)
        if self._view is not None and not self._resetting[0]:
            first = {key: values[0] for key, values in observation.items()}
            self._view.show(first, action[0], self._open[0].in_hand)

        self._observation, reward, terminated, truncated, infos = step_env(action)
        self._clock += 1
        self._judge(turn, reward, terminated, truncated, infos)

        taken = 0
        for i, episode in enumerate(self._open):
            if self._resetting[i]:  # the action was ignored
                self._resetting[i] = False
                self._look(i)
                continue
            if episode.steps == 0:
                episode.weights_updates = weights_updates
            if episode.steps >= episode.probe or request.keep_probing:
                episode.builder.add(
                    observation,
                    i,
                    action[i],
                    reward[i],
                    terminated[i],
                    truncated[i],
                    beta if takeover[i] else 0.0,
                    episode.in_hand,
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
            elif turn.verdicts.get(i) != "discard":
                success = bool(infos[i]["is_success"])
                if len(episode.builder):
                    finished.columns.append(episode.builder.finish(self._observation, i, success))
                finished.summaries.append(episode.summary(success, infos[i].get("true_success")))
                if self._view is not None and i == 0:
                    self._view.end_episode(success)
            self._begin(i, request.base_only)
        return taken

    def _hand_over(self, request: SampleRequest) -> Turn:
        """Who acts in this step. Where a person has let go, the base policy plans anew from the
        present observation, and exploration noise starts afresh."""
        if self._intervenor is None or not request.intervene:
            return NOTHING
        stepping = ~np.array(self._resetting)
        turn = self._intervenor.intervene(self._observation, stepping, request.env_steps)
        released = [
            e.env_index for e in self._open if e.in_hand and e.env_index not in turn.actions
        ]
        for i in turn.actions:
            self._open[i].take_over()
        for i in released:
            self._open[i].in_hand = False
            self._noise.reset(i)
        if released and self._env is not None:
            fresh = self._env.replan(released)
            self._observation = {
                key: with_rows(values, released, fresh[key]) if key in fresh else values
                for key, values in self._observation.items()
            }
        return turn

    def _judge(
        self,
        turn: Turn,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """End the episodes that a person has ended: success is a reward of 1, failure none."""
        for i, verdict in turn.verdicts.items():
            over = terminated[i] or truncated[i]
            if self._resetting[i] or (over and verdict != "discard"):
                continue  # the environment has judged
            if not over and self._env is not None:
                self._env.end_episodes([i])
            reward[i], infos[i]["is_success"] = REWARDS[verdict], verdict == "success"
            terminated[i] = True

    @property
    def oldest_start(self) -> int:
        """`start` of the open episode that began first."""
        return min(episode.start for episode in self._open)

    def _action(
        self, observation: Observation, takeover: np.ndarray, request: SampleRequest
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions [N, A], and the joint gripper choices [N] that the critic made, else -1."""
        base_action = observation[BASE_ACTION]
        action, chosen = base_action.copy(), np.full(len(base_action), -1)
        if request.expert:
            action = np.stack([self._experts[i].act() for i in range(len(action))])
        if request.random_actions:
            action = self._rng.uniform(self._low, self._high, action.shape).astype(np.float32)
            if self._grippers is not None:
                drawn = self._grippers.draw(self._rng, len(action))
                action = self._grippers.commanded(action, base_action, drawn)
        if takeover.any():
            noise = self._noise.sample() if request.explore else None
            forced = self._explored(len(action)) if request.explore else None
            composed, joint = self._actor.act(observation, noise, forced)
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

    def _look(self, i: int) -> None:
        """Environment i has been reset: its expert or the person, if there is one, sees it."""
        if self._make_expert is not None:
            self._experts[i] = self._make_expert(i)
            self._experts[i].reset(self._rng)
        if self._intervenor is not None:
            self._intervenor.begin(i)

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


def with_rows(values: np.ndarray, rows: Sequence[int], new: np.ndarray) -> np.ndarray:
    """A copy of `values` [N, ...] with other rows in these places; stored episodes hold the old."""
    values = values.copy()
    values[list(rows)] = new
    return values
