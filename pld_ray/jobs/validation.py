"""Validation while `pld-ray train` goes on: when it is due, who plays, and what is the best."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pld_ray.config import TrainConfig
from pld_ray.evaluation.play import success_rate
from pld_ray.evaluation.requests import Contestant, Evaluation, Results
from pld_ray.jobs.loop_state import LoopState, note_evaluation
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.runs.layout import CANDIDATE
from pld_ray.runs.run_dir import RunDir

BASE_SUCCESS = "eval/validation_base_success"


class Validation:
    """Evaluations on the init states that follow the held ones, beside the training.

    The first one plays the frozen base policy on them too, so that every later one can be compared
    with it: same states. As long as the residual has not moved, base + residual is that policy, and
    is not played again. On a robot nobody is asked for such episodes: there the base policy's rate
    is known only where the residual's first validation gives it.

    Args:
        save: writes the present weights as `CANDIDATE`.
        record: takes figures and the environment steps of the weights that they are of:
            `eval/residual_success`, `eval/n_episodes` and, once, `eval/validation_base_success`
            (rates in [0, 1]).
    """

    def __init__(
        self,
        config: TrainConfig,
        run: RunDir,
        algorithm: OffPolicy,
        save: Callable[[str], object],
        record: Callable[[dict[str, float], int], None],
        logger: logging.Logger,
    ) -> None:
        self.config, self.run_dir, self.algorithm = config, run, algorithm
        self._save, self._record, self._logger = save, record, logger
        held = config.evaluation.held_states
        self.states = list(range(held, held + config.evaluation.validation_states))
        self._running: Evaluation | None = None
        self._env_steps = 0
        """Of the weights that are being evaluated."""
        self._due: int | None = None
        """When what is being played fell due."""

    @property
    def goes_on(self) -> bool:
        """One is being played."""
        return self._running is not None

    @property
    def unfinished(self) -> dict[str, int]:
        """For a checkpoint's state: what is being played is due again if the run goes on there."""
        return {} if self._due is None else {"next_evaluation": self._due}

    def step(self, state: LoopState, on_wait: Callable[[], None]) -> dict[str, float]:
        """Begin an evaluation when one is due, and take the result of one that is over.

        The checkpoint of what was evaluated becomes `best` if it is the best one so far.

        Args:
            state: what is due, and what is known already; updated.
            on_wait: called before training waits for the end of one.

        Returns:
            The figures of one that is over, else nothing.
        """
        steps, interval = self.algorithm.env_steps, self.config.evaluation.interval_steps
        total = self.config.total_steps
        ended, due = steps >= total, state.next_evaluation
        if self.algorithm.updates and state.evaluation_due(steps, interval, total):
            if ended and self._running is not None:  # the last one must not be missed
                self._conclude(self._running.wait(), state)
            if self._running is not None:
                self._logger.warning("the last evaluation is not over yet: this one is left out")
            else:
                self._due = due
                self._save(CANDIDATE)
                self._env_steps = self.algorithm.env_steps
                self._running = self._begin(state)
        if self._running is None:
            return {}
        if ended or self.config.evaluation.num_env_runners == 0:
            on_wait()
            return self._conclude(self._running.wait(), state)
        return self._conclude(self._running.poll(), state)

    def _begin(self, state: LoopState) -> Evaluation:
        algorithm = self.algorithm
        moved = not algorithm.acts_as_base
        asks_for_base = algorithm.has_frozen_base and not (moved and self.config.env.robot)
        contestants = {}
        if asks_for_base and state.validation_base is None:
            contestants["base"] = Contestant(residual=False)
        if moved:
            contestants["residual"] = Contestant(residual_scale=algorithm.residual_scale)
        return algorithm.start_evaluation(self.states, contestants)

    def _conclude(self, results: Results | None, state: LoopState) -> dict[str, float]:
        if results is None:
            return {}
        self._running = self._due = None
        figures: dict[str, float] = {}
        if "base" in results:
            state.validation_base = success_rate(results["base"])
            figures[BASE_SUCCESS] = state.validation_base
        if "residual" in results:
            success = success_rate(results["residual"])
        else:  # not moved yet
            assert state.validation_base is not None
            success = state.validation_base
        figures |= {"eval/residual_success": success, "eval/n_episodes": len(self.states)}
        is_best = success >= state.best_success
        state.best_success = max(success, state.best_success)
        state.evaluated_at = self._env_steps
        note_evaluation(self.run_dir, state, is_best)
        self._record(figures, self._env_steps)
        return figures
