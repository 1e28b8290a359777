"""The last few observations of each environment, for policies that look back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


class ObservationHistory:
    """Windows of the last `length` observations, oldest first.

    At an episode's start the first observation fills the whole window, as in LeRobot. With a
    length of 1 nothing is stored and a window is the observation itself.

    Args:
        keys: the observations that the policy needs.
        num_envs: N.
        length: observations per window.
    """

    def __init__(self, keys: Iterable[str], num_envs: int, length: int) -> None:
        self._keys = list(keys)
        self._num_envs = num_envs
        self._length = length
        self._windows: dict[str, np.ndarray] = {}
        self._is_new = np.ones(num_envs, dtype=bool)

    def reset(self, ids: np.ndarray) -> None:
        """An episode starts in these environments."""
        self._is_new[ids] = True

    def with_newest(
        self, ids: np.ndarray, observations: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Each environment's window with this observation at its end; nothing is stored yet.

        Args:
            ids: B environments.
            observations: key -> [B, ...].

        Returns:
            key -> [B, length, ...], or [B, ...] with a length of 1.

        Raises:
            ValueError: an observation is missing.
        """
        missing = sorted(set(self._keys) - set(observations))
        if missing:
            raise ValueError(f"the base policy needs {missing}; got {sorted(observations)}")
        if self._length == 1:
            return {key: np.asarray(observations[key]) for key in self._keys}
        return {key: self._window(key, ids, np.asarray(observations[key])) for key in self._keys}

    def keep(self, ids: np.ndarray, windows: Mapping[str, np.ndarray]) -> None:
        """These windows are what the environments' next ones continue."""
        if self._length == 1:
            return
        for key, window in windows.items():
            if key not in self._windows:
                shape = (self._num_envs, *window.shape[1:])
                self._windows[key] = np.zeros(shape, dtype=window.dtype)
            self._windows[key][ids] = window
        self._is_new[ids] = False

    def forget_newest(self, ids: np.ndarray) -> None:
        """Undo the last `keep` of these environments, so that the same observation may come again.

        What it pushed out is not known any more; it would be pushed out again.
        """
        for window in self._windows.values():
            window[ids, 1:] = window[ids, :-1].copy()

    def _window(self, key: str, ids: np.ndarray, newest: np.ndarray) -> np.ndarray:
        window = np.repeat(newest[:, None], self._length, axis=1)
        old = np.flatnonzero(~self._is_new[ids])
        if len(old):
            window[old, :-1] = self._windows[key][ids[old], 1:]
        return window
