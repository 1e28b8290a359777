"""Exploration noise of the residual, white or persisting.

A base policy that servoes to a target undoes an independent push at the next step; noise that keeps
its sign for several steps moves the arm further.
"""

from __future__ import annotations

import numpy as np


class ExplorationNoise:
    """Unit-variance Gaussian noise [num_envs, action_dim], one stream per environment.

    Args:
        kind: `white`, `ar1` (eps_t = rho * eps_{t-1} + sqrt(1 - rho^2) * n_t) or `held`.
        rho: AR(1) coefficient, in [0, 1).
        hold: steps for which a `held` draw is kept.
        rng: the generator; not shared with anything else.
    """

    def __init__(
        self,
        kind: str,
        num_envs: int,
        action_dim: int,
        rng: np.random.Generator,
        rho: float = 0.9,
        hold: int = 8,
    ) -> None:
        if kind not in ("white", "ar1", "held"):
            raise ValueError(f"exploration_noise={kind!r}: must be white, ar1 or held")
        self.kind, self.rho, self.hold, self.rng = kind, rho, hold, rng
        self._noise = rng.standard_normal((num_envs, action_dim)).astype(np.float32)
        self._age = np.zeros(num_envs, dtype=np.int64)

    def reset(self, env_index: int) -> None:
        """Start a new stream at an episode's start."""
        self._noise[env_index] = self.rng.standard_normal(self._noise.shape[1])
        self._age[env_index] = 0

    def sample(self) -> np.ndarray:
        """This step's noise [num_envs, action_dim]; advances every stream by one step."""
        current = self._noise.copy()
        fresh = self.rng.standard_normal(self._noise.shape).astype(np.float32)
        self._age += 1
        if self.kind == "white":
            self._noise = fresh
        elif self.kind == "ar1":
            self._noise = self.rho * self._noise + np.float32((1 - self.rho**2) ** 0.5) * fresh
        else:
            expired = self._age % self.hold == 0
            self._noise = np.where(expired[:, None], fresh, self._noise)
        return current
