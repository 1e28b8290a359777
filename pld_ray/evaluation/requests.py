"""Evaluation on held init states, spread over whichever runners there are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.rollout.messages import PublishedWeights, check_batches

if TYPE_CHECKING:
    from pld_ray.rllib.algorithm import ResidualSAC

_numbers = itertools.count()
POLL_S = 1.0
SHARES_PER_RUNNER = 2  # smaller shares even out episodes of different length


@dataclass(frozen=True)
class Contestant:
    """Who is evaluated.

    Attributes:
        residual: base + tanh(mean), or the base policy alone.
        residual_scale: beta; None is the one in force.
        weights: what the runners take first; None keeps what they have.
    """

    residual: bool = True
    residual_scale: float | None = None
    weights: PublishedWeights | None = None

    def arguments(self, init_state_ids: list[int]) -> dict[str, Any]:
        """Those of `ResidualEnvRunner.evaluate`."""
        return {
            "init_state_ids": init_state_ids,
            "residual": self.residual,
            "residual_scale": self.residual_scale,
            "weights": self.weights,
        }


class Evaluation:
    """One deterministic episode per init state, played while the caller does something else.

    Shares of the ids are dealt to the group's remote runners as they become free. Those of a runner
    that dies are dealt again to the others.

    Args:
        group: the runners.
        init_state_ids: ids of stored init states of the task.
        contestant: who plays.
    """

    def __init__(
        self, group: EnvRunnerGroup, init_state_ids: list[int], contestant: Contestant
    ) -> None:
        self.group = group
        self.init_state_ids = list(init_state_ids)
        self.contestant = contestant
        self._tag = f"evaluate_{next(_numbers)}"
        self._rows: dict[int, dict[str, Any]] = {}
        self._assigned: dict[int, list[int]] = {}
        runners = max(1, group.num_remote_env_runners())
        self._share = math.ceil(len(set(init_state_ids)) / (SHARES_PER_RUNNER * runners))

    def poll(self, timeout_s: float = 0.0) -> list[dict[str, Any]] | None:
        """Take what is finished and deal the rest; the rows in the order of the ids when complete.

        Raises:
            RuntimeError: no runner is left.
            EnvRunnerError: an environment or the base policy cannot go on.
        """
        if self.group.num_remote_env_runners() == 0:
            return self._play_here()
        self._deal()
        ready = self.group.fetch_ready_async_reqs(tags=self._tag, timeout_seconds=timeout_s)
        check_batches([result for _, result in ready])
        for runner, result in ready:
            self._assigned.pop(runner, None)
            for row in result["rows"]:
                self._rows[row["init_state_id"]] = row
        if self._missing():
            return None
        return [self._rows[i] for i in self.init_state_ids]

    def wait(self) -> list[dict[str, Any]]:
        """The rows, in the order of the ids."""
        while (rows := self.poll(POLL_S)) is None:
            pass
        return rows

    def _play_here(self) -> list[dict[str, Any]]:
        arguments = self.contestant.arguments(self.init_state_ids)
        return self.group.local_env_runner.evaluate(**arguments)

    def _missing(self) -> list[int]:
        return [i for i in dict.fromkeys(self.init_state_ids) if i not in self._rows]

    def _deal(self) -> None:
        healthy = self.group.healthy_env_runner_ids()
        if not healthy:
            raise RuntimeError("evaluation: no env runner is alive; see the runners' log")
        self._assigned = {r: ids for r, ids in self._assigned.items() if r in healthy}
        taken = {i for ids in self._assigned.values() for i in ids}
        left = [i for i in self._missing() if i not in taken]
        for runner in healthy:
            if runner in self._assigned or not left:
                continue
            share, left = left[: self._share], left[self._share :]
            sent = self.group.foreach_env_runner_async(
                "evaluate_rows",
                tag=self._tag,
                kwargs=self.contestant.arguments(share),
                remote_worker_ids=[runner],
            )
            if sent:
                self._assigned[runner] = share


def evaluate_init_states(
    algorithm: ResidualSAC, eval_group: EnvRunnerGroup | None
) -> tuple[dict[str, Any], int, int]:
    """RLlib's `custom_evaluation_function`: success on `config.held_init_states`."""
    group = eval_group or algorithm.env_runner_group
    rows = Evaluation(group, algorithm.config.held_init_states, Contestant()).wait()
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
