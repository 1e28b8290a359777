"""An environment that crashes, hangs or raises on command."""

from __future__ import annotations

import os
import pathlib
import threading

from toy import CountingEnv


class FragileEnv(CountingEnv):
    """First action component: 0.25 ends the process, 0.5 never returns, 0.75 raises.

    `info["seed"]` is the one of a reset.

    `die_once` names a file: the process ends in step 3 of an episode from init state 4, unless the
    file exists; it is made first.
    """

    def __init__(self, die_once: str | None = None) -> None:
        super().__init__(length=5)
        self.die_once = die_once

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "seed": seed}

    def step(self, action):
        if action[0] == 0.25:
            os._exit(7)
        if action[0] == 0.5:
            threading.Event().wait()
        if action[0] == 0.75:
            raise RuntimeError("the arm fell off")
        if self.die_once and self.init_state_id == 4 and self.steps == 3:
            marker = pathlib.Path(self.die_once)
            if not marker.exists():
                marker.touch()
                os._exit(7)
        return super().step(action)
