"""A person who takes over from the policy: what is asked at each step, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

Verdict = Literal["success", "failure", "discard"]
"""How a person ends an episode; one that is discarded is recorded again."""


@dataclass(frozen=True)
class Turn:
    """What a person does in one step of N environments.

    Attributes:
        actions: environment -> [A], executed in place of the policy's action; it is clipped to the
            action space. Where there is none the policy acts.
        verdicts: environment -> how its episode ends with this step.
    """

    actions: Mapping[int, np.ndarray] = field(default_factory=dict)
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)


NOTHING = Turn()


class Intervenor(Protocol):
    """A person at N environments."""

    def begin(self, env_index: int) -> None:
        """An environment has been reset: its next step is an episode's first."""

    def intervene(
        self, observation: Mapping[str, np.ndarray], stepping: np.ndarray, env_steps: int
    ) -> Turn:
        """Asked once per step, when the base policy has answered and before anything is executed.

        Args:
            observation: of all environments [N, ...], `base_action` among it.
            stepping: [N] bool; False where this step is a reset, which takes no action.
            env_steps: environment steps of the run, as of the request.
        """
        ...

    def close(self) -> None:
        """Let go of the device; safe to call again."""
