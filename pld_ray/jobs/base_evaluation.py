"""The base policy on the held init states, which the result is compared with at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pld_ray.config import TrainConfig
from pld_ray.evaluation.play import success_rate
from pld_ray.evaluation.requests import Contestant, Evaluation, Results
from pld_ray.jobs.loop_state import LoopState
from pld_ray.rllib.off_policy import OffPolicy


class BaseEvaluation:
    """Played once: beside the training where there are runners for it, else before it.

    Beside it only what training does not change can be played, a frozen base policy; validations,
    which cannot wait, go first.

    Args:
        states: ids of the held init states.
        record: takes `eval/base_success`, in [0, 1], and `eval/n_episodes`.
    """

    def __init__(
        self,
        config: TrainConfig,
        algorithm: OffPolicy,
        states: list[int],
        record: Callable[[dict[str, Any]], None],
    ) -> None:
        self.algorithm, self.states, self._record = algorithm, states, record
        self._has_runners = config.evaluation.num_env_runners > 0
        self._running: Evaluation | None = None

    def step(self, state: LoopState, validates: bool, on_wait: Callable[[], None]) -> None:
        """Begin once the policy is there to be evaluated, go on, or take what is over; nothing
        once the episodes are known.

        Args:
            state: gets the episodes.
            validates: a validation goes on, whose runners are left to it.
            on_wait: called before training waits for them.
        """
        algorithm = self.algorithm
        if state.base_rows or not algorithm.has_base or validates:
            return
        if self._running is not None:
            self._take(self._running.poll(), state)
        elif self._has_runners and algorithm.has_frozen_base:
            base = {"base": Contestant(residual=False)}
            self._running = algorithm.start_evaluation(self.states, base)
            self._take(self._running.poll(), state)
        else:
            on_wait()
            self._take(algorithm.evaluate_start(self.states), state)

    def finish(self, state: LoopState) -> None:
        """Wait for one that is not over."""
        if self._running is not None and not state.base_rows:
            self._take(self._running.wait(), state)

    def _take(self, results: Results | None, state: LoopState) -> None:
        if results is None:
            return
        self._running = None
        state.base_rows = [asdict(episode) for episode in results["base"]]
        rates = {f"eval/{name}_success": success_rate(found) for name, found in results.items()}
        self._record({**rates, "eval/n_episodes": len(self.states)})
