"""A tracked run as plain data: what the report reads of MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field

from pld_ray.report.series import Series

SUCCESS = "eval/residual_success"
BASE = "eval/base_success"
VALIDATION_BASE = "eval/validation_base_success"
HELD_SUCCESS = "eval/held_residual_success"
HELD_BASE = "eval/held_base_success"
N_EPISODES = "eval/n_episodes"
VALIDATION_STATES = "evaluation.validation_states"
AUTONOMOUS_SUCCESS = "train/success_rate"
ASSISTED_SUCCESS = "train/assisted_success_rate"
INTERVENTION_SHARE = "train/intervention_share"
RESIDUAL_SCALE = "residual_scale"
UPDATES = "updates"
WALL_S = "time/wall_s"

HISTORIES = (SUCCESS, RESIDUAL_SCALE, UPDATES, WALL_S, INTERVENTION_SHARE)
"""Metrics that a report reads with all their values; a server is asked once for each and run."""
LATEST = (
    *(BASE, VALIDATION_BASE, HELD_SUCCESS, HELD_BASE, N_EPISODES),
    *(AUTONOMOUS_SUCCESS, ASSISTED_SUCCESS),
)
"""Metrics of which the newest value is enough; it comes with the run."""

PARENT_TAG = "mlflow.parentRunId"


@dataclass(frozen=True)
class Run:
    """One run of the store."""

    run_id: str
    name: str
    status: str
    """MLflow's: RUNNING, SCHEDULED, FINISHED, FAILED or KILLED."""
    start_ms: int | None
    artifact_uri: str
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Series] = field(default_factory=dict)
    """Those of `HISTORIES` that were logged at least once."""
    latest: dict[str, float] = field(default_factory=dict)
    """Those of `LATEST` that were logged at least once."""

    @property
    def trial(self) -> str:
        """Trial id; the run's name outside a sweep."""
        return self.tags.get("trial") or self.name or self.run_id[:8]

    @property
    def seed(self) -> str:
        """Seed, or an empty text where none was logged."""
        return self.tags.get("seed") or self.params.get("seed", "")

    @property
    def task(self) -> str:
        """Task, or an empty text where none was logged."""
        return self.tags.get("task") or self.params.get("env.task", "")

    def last(self, metric: str) -> float | None:
        """The newest value of a metric; None where it was never logged."""
        series = self.metrics.get(metric)
        return series.last if series is not None else self.latest.get(metric)

    @property
    def env_steps(self) -> int:
        """The highest environment step of any history."""
        return max((int(s.steps[-1]) for s in self.metrics.values()), default=0)
