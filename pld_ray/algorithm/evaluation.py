"""Evaluation on held init states, spread over whichever runners there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from pld_ray.algorithm.algorithm import ResidualSAC


def run_episodes(
    group: EnvRunnerGroup, init_state_ids: list[int], residual: bool
) -> list[dict[str, Any]]:
    """One deterministic episode per init state; rows in the order of `init_state_ids`.

    The ids are dealt out round-robin to the group's remote runners (to the local one if there is
    none). Ids of a runner that dies on the way are run by the others.

    Raises:
        RuntimeError: no runner is left.
    """
    rows: dict[int, dict[str, Any]] = {}
    while len(rows) < len(set(init_state_ids)):
        missing = [i for i in init_state_ids if i not in rows]
        if group.num_remote_env_runners() == 0:
            results = [group.local_env_runner.evaluate(missing, residual)]
        else:
            runners = group.healthy_env_runner_ids()
            if not runners:
                raise RuntimeError("evaluation: no env runner is alive; see the runners' log")
            shares = [missing[k :: len(runners)] for k in range(len(runners))]
            busy = [(r, ids) for r, ids in zip(runners, shares, strict=True) if ids]
            results = group.foreach_env_runner(
                "evaluate",
                kwargs=[{"init_state_ids": ids, "residual": residual} for _, ids in busy],
                remote_worker_ids=[r for r, _ in busy],
                local_env_runner=False,
                timeout_seconds=None,
            )
        for row in (row for result in results for row in result):
            rows[row["init_state_id"]] = row
    return [rows[i] for i in init_state_ids]


def evaluate_init_states(
    algorithm: ResidualSAC, eval_group: EnvRunnerGroup | None
) -> tuple[dict[str, Any], int, int]:
    """RLlib's `custom_evaluation_function`: success on `config.held_init_states`."""
    group = eval_group or algorithm.env_runner_group
    rows = run_episodes(group, algorithm.config.held_init_states, residual=True)
    algorithm.last_evaluation = rows
    steps = sum(row["length"] for row in rows)
    results = {
        "success_rate": sum(row["success"] for row in rows) / len(rows),
        "episode_return_mean": sum(row["sum_reward"] for row in rows) / len(rows),
        "episode_len_mean": steps / len(rows),
        "num_episodes": len(rows),
    }
    logger = MetricsLogger(stats_cls_lookup=algorithm.config.stats_cls_lookup)
    logger.log_dict(results, reduce="mean", window=1)
    algorithm.metrics.aggregate([logger.reduce()], key=(EVALUATION_RESULTS, ENV_RUNNER_RESULTS))
    return results, steps, steps
