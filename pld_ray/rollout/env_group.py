"""Several environments as one: stepped in turn, or in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from pld_ray.errors import UserError

MakeEnv = Callable[[], gym.Env]
MAX_FAILURES = 3
"""Failures of one environment without a successful step between them before the group gives up."""


class EnvFailedError(UserError, RuntimeError):
    """An environment keeps failing; the message says how."""


@dataclass
class Command:
    """What one environment is told: to reset (`action` None) or to step."""

    action: np.ndarray | None = None
    seed: int | None = None
    options: dict[str, Any] | None = None


@dataclass
class Outcome:
    """What became of it; `failure` says in words why there is no result."""

    observation: Mapping[str, np.ndarray] = field(default_factory=dict)
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


class EnvGroup(Protocol):
    """N environments with equal spaces. One that fails is replaced; the others do not notice."""

    num_envs: int
    observation_space: gym.spaces.Dict
    action_space: gym.spaces.Box

    def run(self, commands: Sequence[Command | None]) -> list[Outcome]:
        """One command per environment, in order; None lets one wait, its outcome is empty.

        An environment that failed must be reset next.

        Raises:
            EnvFailedError: one failed `MAX_FAILURES` times in a row.
        """
        ...

    def render(self, i: int) -> np.ndarray:
        """A picture [H, W, 3] uint8 of environment i."""
        ...

    def close(self) -> None:
        """Free everything; safe to call again."""
        ...


def apply(env: gym.Env, command: Command) -> Outcome:
    """Carry out one command."""
    if command.action is None:
        observation, info = env.reset(seed=command.seed, options=command.options)
        return Outcome(observation, info=info)
    observation, reward, terminated, truncated, info = env.step(command.action)
    return Outcome(observation, float(reward), bool(terminated), bool(truncated), info)


class FailureCount:
    """Failures in a row of each environment, and the seeds with which replacements start."""

    def __init__(self, num_envs: int) -> None:
        self._in_a_row = np.zeros(num_envs, dtype=np.int64)
        self._total = np.zeros(num_envs, dtype=np.int64)
        self._seeds: list[int | None] = [None] * num_envs

    def note(self, i: int, command: Command, outcome: Outcome) -> None:
        """Count a failure of environment i, or forget the earlier ones after a good step."""
        if outcome.failure is None:
            if command.action is not None:
                self._in_a_row[i] = 0
            return
        self._in_a_row[i] += 1
        self._total[i] += 1
        if self._in_a_row[i] >= MAX_FAILURES:
            raise EnvFailedError(
                f"environment {i} failed {MAX_FAILURES} times in a row, the last time so: "
                f"{outcome.failure}"
            )

    def seeded(self, i: int, command: Command, replaced: bool) -> Command:
        """What environment i is told: in place of no seed, a replacement's first command gets one
        that follows from the environment's last and from how often it failed.

        To be asked for every command: it remembers the seeds.
        """
        if command.seed is not None:
            self._seeds[i] = command.seed
        last = self._seeds[i]
        if command.seed is not None or not replaced or last is None:
            return command
        entropy = np.random.SeedSequence([int(last), int(self._total[i])])
        return replace(command, seed=int(entropy.generate_state(1)[0]))


class InProcessEnvs:
    """Environments of this process, stepped in turn.

    Args:
        envs: environments, or functions that make one. Only one that was made here can be replaced
            when it raises; the exception of a given one goes to the caller.
    """

    def __init__(self, envs: Sequence[gym.Env | MakeEnv]) -> None:
        self._makers = [None if isinstance(env, gym.Env) else env for env in envs]
        self.envs = [env if isinstance(env, gym.Env) else env() for env in envs]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = checked_spaces(
            self.envs[0].observation_space, self.envs[0].action_space
        )
        self._failures = FailureCount(self.num_envs)
        self._replaced = [False] * self.num_envs

    def run(self, commands: Sequence[Command | None]) -> list[Outcome]:
        return [
            Outcome() if command is None else self._run_one(i, command)
            for i, command in enumerate(commands)
        ]

    def _run_one(self, i: int, command: Command) -> Outcome:
        command = self._failures.seeded(i, command, self._replaced[i])
        make = self._makers[i]
        if make is None:
            return apply(self.envs[i], command)
        try:
            outcome = apply(self.envs[i], command)
            self._replaced[i] = False
        except Exception as error:  # a simulator may raise anything; the run survives one of them
            outcome = Outcome(failure=f"{type(error).__name__}: {error}")
        self._failures.note(i, command, outcome)
        if outcome.failure is not None:
            self.envs[i] = replacement(self.envs[i], make)
            self._replaced[i] = True
        return outcome

    def render(self, i: int) -> np.ndarray:
        return np.asarray(self.envs[i].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def checked_spaces(
    observations: gym.Space, actions: gym.Space
) -> tuple[gym.spaces.Dict, gym.spaces.Box]:
    """An environment's spaces.

    Raises:
        ValueError: observations that are no Dict, or actions that are no Box.
    """
    if not isinstance(observations, gym.spaces.Dict):
        raise ValueError(f"the environment's observations must be a Dict, not {observations}")
    if not isinstance(actions, gym.spaces.Box):
        raise ValueError(f"the environment's actions must be a Box, not {actions}")
    return observations, actions


def replacement(env: gym.Env, make: MakeEnv) -> gym.Env:
    """A new environment for a broken one, which is closed.

    The arm of a robot goes from one to the other, with its person: let go of in between, its motors
    would let it fall.
    """
    if hasattr(env.unwrapped, "asks_person"):
        made = make()
        close_quietly(env)
        return made
    close_quietly(env)
    return make()


def close_quietly(env: gym.Env) -> None:
    """Close an environment that may be broken."""
    try:
        env.close()
    except Exception:  # it is thrown away in any case
        return
