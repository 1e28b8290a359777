"""Evaluation on the validation states while training goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pld_ray.config import EvaluationConfig
from pld_ray.evaluation.requests import Evaluation
from pld_ray.evaluation.rows import success_rate
from pld_ray.rllib.algorithm import ResidualSAC


@dataclass(frozen=True)
class EvaluationResult:
    """Figures of one evaluation and the environment step at which its weights were taken."""

    env_steps: int
    figures: dict[str, float]


class PeriodicEvaluation:
    """Base + residual at the beta in force and, if asked for, at the schedule's final one too.

    Args:
        config: `at_final_scale`; `num_env_runners` > 0 plays beside the training.
        algorithm: whose weights are evaluated.
        init_state_ids: validation states.
    """

    def __init__(
        self, config: EvaluationConfig, algorithm: ResidualSAC, init_state_ids: list[int]
    ) -> None:
        self.config, self.algorithm = config, algorithm
        self.init_state_ids = init_state_ids
        self._env_steps = 0
        self._evaluations: dict[str, Evaluation] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def parallel(self) -> bool:
        """Training goes on meanwhile."""
        return self.config.num_env_runners > 0

    @property
    def running(self) -> bool:
        """One has begun and is not concluded."""
        return bool(self._evaluations)

    def start(self) -> None:
        """Evaluate the present weights."""
        algorithm, params = self.algorithm, self.algorithm.config.residual_sac_params()
        self._env_steps = algorithm.env_steps
        scales = {"residual": algorithm.residual_scale}
        if self.config.at_final_scale and params.residual_scale != algorithm.residual_scale:
            scales["final_scale"] = params.residual_scale
        weights = algorithm.snapshot_weights()
        self._rows = {}
        self._evaluations = {
            name: algorithm.start_evaluation(self.init_state_ids, True, scale, weights)
            for name, scale in scales.items()
        }

    def poll(self, timeout_s: float = 0.0) -> EvaluationResult | None:
        """The result when it is there."""
        for name, evaluation in self._evaluations.items():
            if name in self._rows:
                continue
            rows = evaluation.poll(timeout_s)
            if rows is None:
                return None
            self._rows[name] = rows
        return self._conclude()

    def wait(self) -> EvaluationResult | None:
        """The result of the evaluation that runs; None if none does."""
        if not self.running:
            return None
        while (result := self.poll(timeout_s=1.0)) is None:
            pass
        return result

    def _conclude(self) -> EvaluationResult:
        figures: dict[str, float] = {
            f"eval/{name}_success": success_rate(rows) for name, rows in self._rows.items()
        }
        figures["eval/n_episodes"] = len(self._rows["residual"])
        self._evaluations = {}
        return EvaluationResult(self._env_steps, figures)
