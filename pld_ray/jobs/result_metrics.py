"""Which numbers of an RLlib result a run's history, plot and MLflow show: counters and times."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from pld_ray.pool.pool import BasePolicyPool
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.tracking.progress import TrainProgress

logger = logging.getLogger(__name__)

POOL_COUNTS = ("requests", "retries", "deadline_misses", "restarts")
LEARNER_KEYS = (
    "critic_loss",
    "actor_loss",
    "temperature_loss",
    "alpha",
    "entropy",
    "q_mean",
    "q_out_of_bound",
    "td_target_mean",
    "conservative_gap",
    "residual_abs",
    "critic_grad_norm",
    "actor_grad_norm",
    "discrete_critic_loss",
    "discrete_q_mean",
    "flow_loss",
    "flow_grad_norm",
    "one_step_loss",
    "one_step_grad_norm",
    "gaussian_loss",
    "gaussian_grad_norm",
    "temperature",
    "positive_share",
    "imitated_share",
)
"""Of the learners' metrics; each is `learner/<key>` of a row."""


def learner_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """`learner/...` of an RLlib result; one that is not finite stays: the journal counts it."""
    found = result.get("learners", {}).get("default_policy", {})
    return {f"learner/{k}": float(found[k]) for k in LEARNER_KEYS if k in found}


def pool_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """`pool/...` of `BasePolicyPool.metrics()`: load, batches, latency, faults."""
    latency, batches = metrics["latency_ms"], metrics["batches"]
    row = {
        **{f"pool/latency_{name}_ms": value for name, value in latency.items()},
        "pool/batch_size_mean": metrics["rows"] / batches if batches else math.nan,
    }
    for name in ("num_replicas", "queue_depth", "busy_share", *POOL_COUNTS):
        row[f"pool/{name}"] = metrics[name]
    return {key: float(value) for key, value in row.items() if math.isfinite(value)}


def pool_row(pool: BasePolicyPool | None) -> dict[str, float]:
    """`pool_figures`; none where there is no pool, or its controller does not answer now."""
    if pool is None:
        return {}
    try:
        return pool_figures(pool.metrics())
    except TimeoutError as error:  # the replicas may answer all the same
        logger.warning("there are no figures of the pool this time: %s", error)
        return {}


def flatten_result(result: Mapping[str, Any]) -> dict[str, float]:
    """Pick and rename: `train/...`, `replay/...`, `time/...`, without what is missing.

    A timer without a measurement is NaN, and left out.
    """
    runners = result.get("env_runners", {})
    shared = result.get("learners", {}).get("__all_modules__", {})
    timers = result.get("timers", {})
    row = {
        "train/staleness_mean": result.get("staleness_mean"),
        "train/staleness_max": result.get("staleness_max"),
        "train/num_episodes_too_stale": result.get("num_episodes_too_stale"),
        "train/num_env_failures": runners.get("num_env_failures"),
        "train/num_env_runners_lost": result.get("num_env_runners_lost"),
        "train/num_env_steps_lost": result.get("num_env_steps_lost"),
        "replay/online": shared.get("replay_online"),
        "replay/offline": shared.get("replay_offline"),
        "time/sample_s": timers.get("env_runner_sampling_timer"),
        "time/update_s": timers.get("learner_update_timer"),
        "time/publish_s": timers.get("synch_weights"),
    }
    measured = {name: value for name, value in row.items() if is_number(value)}
    return {name: float(value) for name, value in measured.items() if math.isfinite(value)}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether there is a value at all."""
    return isinstance(value, int | float)


def show(progress: TrainProgress | None, **changes: Any) -> None:
    """Tell a display, if there is one."""
    if progress is not None:
        progress.update(**changes)


def record_initialization(algorithm: OffPolicy, record: Any) -> None:
    """Hand the figures of the Cal-QL initialisation to `record` as `calql/...`; forget them."""
    for row in algorithm.initialization_rows:
        record({f"calql/{name.removeprefix('calql_')}": value for name, value in row.items()})
    algorithm.initialization_rows = []


def show_initialization(algorithm: OffPolicy, progress: TrainProgress) -> None:
    """Phase and counters of what comes before `online`."""
    steps = None
    if algorithm.phase == "calql":
        steps = f"{algorithm.progress.calql_done:,}/{algorithm.config.calql_steps:,}"
    progress.update(
        phase=algorithm.phase,
        env_steps=algorithm.env_steps,
        updates=algorithm.updates,
        calql_steps=steps,
    )
