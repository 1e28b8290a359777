"""Policies for the pool's tests: one by arithmetic, and one that misbehaves on command."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np

from pld_ray.policies import Prediction


class AddingPolicy:
    """Row i's chunk is its observation plus its seed, plus 1 per step; easily computed by hand.

    Args:
        fixed_s, row_s: seconds that each inference sleeps, and per row.
        folder: where misbehaviour leaves its traces; the file "fingerprint" there tells another
            one.
        rtc: add a row's leftover, all of it, to its chunk; normalised is half the chunk.

    An observation of `CRASH`, `HANG`, `FAIL` or `WAIT` makes the policy end its process, never
    return, raise, or wait until the file "go" exists. The first two do so once only: the file
    "crashed" or "hung" is made first. Every batch that waits makes the file "waiting-<process>".
    """

    CRASH, HANG, FAIL, WAIT = 1001.0, 1002.0, 1003.0, 1004.0

    action_dim, n_action_steps, chunk_size, feature_dim = 1, 2, 3, 2
    input_features = {"x": (1,)}
    fingerprint = "adding"

    def __init__(
        self,
        fixed_s: float = 0.0,
        row_s: float = 0.0,
        folder: str | None = None,
        rtc: bool = False,
    ) -> None:
        self.rtc = rtc
        self._fixed_s, self._row_s = fixed_s, row_s
        self._folder = Path(folder) if folder else None
        if self._folder and (self._folder / "fingerprint").exists():
            self.fingerprint = (self._folder / "fingerprint").read_text()

    def infer(self, observations, tasks, env_ids, seeds=None, leftovers=None):
        x = observations["x"]
        self._misbehave(set(x.ravel().tolist()))
        if self._fixed_s or self._row_s:
            time.sleep(self._fixed_s + self._row_s * len(x))
        first = x + np.asarray(seeds or [0] * len(x))[:, None]
        chunks = (first[:, None, :] + np.arange(3)[None, :, None]).astype(np.float32)
        features = np.concatenate([x, np.asarray(env_ids)[:, None]], axis=1).astype(np.float32)
        if leftovers is not None:
            chunks += np.nansum(leftovers, axis=(1, 2))[:, None, None]
        return Prediction(chunks, features, chunks / 2)

    def _misbehave(self, values: set[float]) -> None:
        if self.FAIL in values:
            raise RuntimeError("the policy cannot")
        if self._folder is None:
            return
        if self.CRASH in values and not (self._folder / "crashed").exists():
            (self._folder / "crashed").touch()
            os._exit(1)
        if self.HANG in values and not (self._folder / "hung").exists():
            (self._folder / "hung").touch()
            threading.Event().wait()
        if self.WAIT in values:
            (self._folder / f"waiting-{os.getpid()}").touch()
        while self.WAIT in values and not (self._folder / "go").exists():
            time.sleep(0.005)


def make_adding(**options: object) -> AddingPolicy:
    return AddingPolicy(**options)  # type: ignore[arg-type]


def make_broken() -> AddingPolicy:
    raise FileNotFoundError("no such weights")
