"""LIBERO's own environment step behind the call of `FastStep`."""

# ruff: noqa: E402  robosuite must not be imported before the bootstrap
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from envs.bootstrap import import_libero

import_libero()

from robosuite.utils.observables import Observable, sensor


class StockStep:
    """Steps a robosuite environment by its own `step`.

    Args:
        env: the robosuite environment inside LIBERO's `ControlEnv`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._observe: Callable[[], None] | None = None
        # robosuite calls its sensors when it samples them: a sensor of ours learns the moment.
        watch = Observable(
            "pld_ray_watch",
            sensor("pld_ray")(lambda cache: self._sampled()),
            sampling_rate=env.control_freq,
        )
        watch.set_active(False)
        env.add_observable(watch)

    def __call__(
        self, action: np.ndarray, observe: Callable[[], None] | None = None, substep: int = -1
    ) -> bool:
        """As `FastStep.__call__`, but robosuite picks any `substep` other than -1 itself."""
        self._observe = observe if substep != -1 else None
        _, _, done, _ = self._env.step(action)
        self._observe = None
        if observe is not None and substep == -1:
            observe()
        return bool(done)

    def _sampled(self) -> float:
        if self._observe is not None:
            self._observe()
        return 0.0
