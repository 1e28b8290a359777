"""How far a sweep is: a line when a trial changes or waits, at most one each half minute else."""

from __future__ import annotations

import logging
import pathlib
import sys
import time
from typing import Any

from ray.tune import Callback

from pld_ray.runs.layout import trial_folder
from pld_ray.runs.status import RUNNING, read_status

INTERVAL_S = 30.0
log = logging.getLogger("pld_ray.sweep")


class SweepProgress(Callback):
    """Counts trials as Tune reports them.

    Args:
        num_trials: of the whole sweep.
        metric: whose best value is shown.
        trial_steps: environment steps of a trial that runs to its end.
        folder: of the sweep, whose trials say there what they wait for.
    """

    def __init__(self, num_trials: int, metric: str, trial_steps: int, folder: str) -> None:
        self.num_trials, self.metric, self.trial_steps = num_trials, metric, trial_steps
        self.folder = folder
        self.best: tuple[float, str] = (0.0, "")
        self._states: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._waits: dict[str, str] = {}
        self._started = self._printed = self._asked = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "num_trials": self.num_trials,
            "metric": self.metric,
            "trial_steps": self.trial_steps,
            "folder": self.folder,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # Tune saves it; a resumed sweep counts anew

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._look(trials)
        self._states[trial.trial_id] = "RUNNING"  # Tune sets it after this
        before = int((trial.last_result or {}).get("env_steps") or 0)
        self._begun.setdefault(trial.trial_id, before)
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
        self._states[trial.trial_id] = "TERMINATED"  # as above
        held = (trial.last_result or {}).get("held_success")
        steps = self._steps.get(trial.trial_id, 0)
        how = f"finished, {held:.0%} on held states" if held is not None else "stopped early"
        self._print(f"{trial} {how} after {steps:,} steps")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._look(trials)
        self._print(f"{trial} died")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Say once what a trial waits for: it may wait for hours, and its log is far away."""
        if time.monotonic() - self._asked < INTERVAL_S:
            return
        self._asked = time.monotonic()
        self._look(trials)
        for trial in trials:
            if trial.is_finished():
                continue
            status = read_status(trial_folder(pathlib.Path(self.folder), str(trial)))
            reason = status.reason if status is not None and status.state == RUNNING else ""
            if reason and self._waits.get(trial.trial_id) != reason:
                self._print(f"{trial} is {reason}")
            self._waits[trial.trial_id] = reason

    def _look(self, trials: list[Any]) -> None:
        self._states = {trial.trial_id: trial.status for trial in trials}

    def time_left_s(self, elapsed_s: float) -> float | None:
        """Seconds that the steps to come take at the rate so far; None before any is known.

        Args:
            elapsed_s: seconds in which this process saw the trials step.
        """
        ended = [name for name, state in self._states.items() if state in ("TERMINATED", "ERROR")]
        made = sum(steps - self._begun.get(name, 0) for name, steps in self._steps.items())
        open_steps = [steps for name, steps in self._steps.items() if name not in ended]
        not_begun = self.num_trials - len(ended) - len(open_steps)
        to_come = self.trial_steps * not_begun
        to_come += sum(max(0, self.trial_steps - steps) for steps in open_steps)
        return elapsed_s * to_come / made if made > 0 else None

    def _print(self, event: str) -> None:
        self._printed = time.monotonic()
        states = list(self._states.values())
        ended, running = states.count("TERMINATED"), states.count("RUNNING")
        failed = states.count("ERROR")
        elapsed_s = time.monotonic() - self._started
        left_s = self.time_left_s(elapsed_s)
        parts = [
            f"[sweep] {ended}/{self.num_trials} trials, {running} running",
            *([f"{failed} failed"] if failed else []),
            f"{sum(self._steps.values()):,} steps",
            *([f"best {self.best[0]:.0%} ({self.best[1]})"] if self.best[1] else []),
            f"{elapsed_s / 60:.1f} min",
            *([f"about {left_s / 60:.0f} min left"] if left_s is not None else []),
            *([event] if event else []),
        ]
        print("  ".join(parts), file=sys.stdout, flush=True)
        log.info("  ".join(parts).removeprefix("[sweep] "))
