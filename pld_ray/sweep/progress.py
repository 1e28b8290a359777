"""How far a sweep is: one line when a trial changes, at most one every few seconds otherwise."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from ray.tune import Callback

INTERVAL_S = 30.0


class SweepProgress(Callback):
    """Counts trials as Tune reports them.

    Args:
        num_trials: of the whole sweep.
        metric: whose best value is shown.
    """

    def __init__(self, num_trials: int, metric: str) -> None:
        self.num_trials, self.metric = num_trials, metric
        self.best: tuple[float, str] = (-math.inf, "")
        self._states: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self._started = self._printed = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {"num_trials": self.num_trials, "metric": self.metric}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # Tune saves it; a resumed sweep counts anew

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._look(trials)
        self._print(f"{trial} started")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        value = result.get(self.metric)
        if isinstance(value, int | float) and value > self.best[0]:
            self.best = (float(value), str(trial))
        self._steps[trial.trial_id] = int(result.get("env_steps") or 0)
        self._look(trials)
        if time.monotonic() - self._printed >= INTERVAL_S:
            self._print("")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._look(trials)
        held = (trial.last_result or {}).get("held_success")
        steps = self._steps.get(trial.trial_id, 0)
        how = f"finished, {held:.0%} on held states" if held is not None else "stopped early"
        self._print(f"{trial} {how} after {steps:,} steps")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._look(trials)
        self._print(f"{trial} died")

    def _look(self, trials: list[Any]) -> None:
        self._states = {trial.trial_id: trial.status for trial in trials}

    def _print(self, event: str) -> None:
        self._printed = time.monotonic()
        states = list(self._states.values())
        ended, running = states.count("TERMINATED"), states.count("RUNNING")
        failed = states.count("ERROR")
        parts = [
            f"[sweep] {ended}/{self.num_trials} trials, {running} running",
            *([f"{failed} failed"] if failed else []),
            f"{sum(self._steps.values()):,} steps",
            *([f"best {self.best[0]:.0%} ({self.best[1]})"] if self.best[1] else []),
            f"{(time.monotonic() - self._started) / 60:.1f} min",
            *([event] if event else []),
        ]
        print("  ".join(parts), file=sys.stdout, flush=True)
