"""A person in simulation: a demonstrator that takes over where the policy gets stuck."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from envs.demonstrator import Demonstrator
from envs.experts import Perception
from pld_ray.config.intervention import InterventionConfig
from pld_ray.rollout.intervention import NOTHING, Turn

PROGRESS = 0.01
"""Metres by which something must have come nearer for it to count as progress."""


class Helper(Protocol):
    """Knows the simulator's state; no memory, so that it can take over anywhere."""

    def act(self) -> np.ndarray:
        """The action [A] for the present state."""
        ...

    def remaining(self) -> float:
        """Metres that are left to go, hand to object and object to goal."""
        ...


@dataclass
class _Watch:
    """One environment's episode as the person sees it."""

    best: float = np.inf
    waited: int = 0
    """Steps since `best` was reached."""
    acts_for: int = 0
    """Steps that the person has acted since taking over; 0 while hands are off."""


class ScriptedPerson:
    """An `Intervenor` for simulation, the same numbers for the same seed.

    Args:
        helper: of an environment's index, asked anew for each episode: an environment that failed
            has been replaced.
        num_envs: N.
        options: when to take over, and for how long.
        rng: of random takeovers.
    """

    def __init__(
        self,
        helper: Callable[[int], Helper],
        num_envs: int,
        options: InterventionConfig,
        rng: np.random.Generator,
    ) -> None:
        self._make, self._options, self._rng = helper, options, rng
        self._watches = [_Watch() for _ in range(num_envs)]
        self._helpers = [helper(i) for i in range(num_envs)]

    def begin(self, env_index: int) -> None:
        self._watches[env_index] = _Watch()
        self._helpers[env_index] = self._make(env_index)

    def intervene(
        self, observation: Mapping[str, np.ndarray], stepping: np.ndarray, env_steps: int
    ) -> Turn:
        actions = {
            i: self._helpers[i].act()
            for i, watch in enumerate(self._watches)
            if stepping[i] and self._wants(i, watch, env_steps)
        }
        return Turn(actions) if actions else NOTHING

    def close(self) -> None:
        """There is nothing to let go of."""

    def _wants(self, i: int, watch: _Watch, env_steps: int) -> bool:
        """Whether the person acts in this step."""
        hold = self._options.hold_steps
        if watch.acts_for and hold is not None and watch.acts_for >= hold:
            self._watches[i] = watch = _Watch()  # hands off, and a new look at how it goes
        if not watch.acts_for and not self._takes_over(i, watch, env_steps):
            return False
        watch.acts_for += 1
        return True

    def _takes_over(self, i: int, watch: _Watch, env_steps: int) -> bool:
        options = self._options
        decay = options.decay_steps
        willing = 1.0 if decay is None else max(0.0, 1.0 - env_steps / decay)
        if options.takeover == "random":
            return bool(self._rng.random() < options.probability * willing)
        remaining = self._helpers[i].remaining()
        watch.waited += 1
        if remaining < watch.best - PROGRESS:
            watch.best, watch.waited = remaining, 0
        if watch.waited < options.patience_steps:
            return False
        watch.waited = 0  # who does not help now waits as long again
        return bool(self._rng.random() < willing)


def make_helper(environments: Sequence[Any]) -> Callable[[int], Helper]:
    """The helper of an environment of this process: its own `helper()`, or the demonstrator.

    Raises:
        ValueError: the environments live elsewhere, or nobody knows how to help in them.
    """
    check_helped(environments[0] if environments else None)

    def helper(i: int) -> Helper:
        env = environments[i]
        return env.helper() if hasattr(env, "helper") else Demonstrator(env, Perception())

    return helper


def check_helped(env: Any) -> None:
    """Raise ValueError unless a scripted person can act in this environment."""
    if env is None:
        raise ValueError(
            "intervention.device=scripted sees the simulator, which must then be in the same "
            "process: set runners.vectorization=in_process"
        )
    if hasattr(env, "helper"):
        return
    if not hasattr(env, "expert_view"):
        raise ValueError(
            f"intervention.device=scripted: {type(env).__name__} has neither helper() nor "
            "expert_view(), so nobody can act in it by a script: give the class a helper() with "
            "act() and remaining(), or choose another device"
        )
    try:
        Demonstrator(env, Perception())
    except ValueError as error:
        raise ValueError(f"intervention.device=scripted: {error}") from error
