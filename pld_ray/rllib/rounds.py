"""Sampling and learning in rounds, in a fixed order: synchronous and pipelined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, TIMERS

from pld_ray.rllib.accounting import account, write_off
from pld_ray.rollout.messages import check_batches

if TYPE_CHECKING:
    from pld_ray.rllib.algorithm import ResidualSAC

TAG = "sample_columns"


class Rounds:
    """A round samples, stores, settles the update debt and publishes.

    Pipelined, the updates owed so far are made while the runners step, and what they bring is
    learnt from in the next round.
    """

    def __init__(self, algorithm: ResidualSAC) -> None:
        self.algorithm = algorithm

    def step(self) -> None:
        """One round."""
        if self.algorithm.config.sampling == "synchronous":
            self._feed(self.receive(self.request()))
            self._update()
        else:
            pending = self.request()
            self._update()
            self._feed(self.receive(pending))
        self.algorithm._publish()

    def request(self, base_only: bool = False, random_actions: bool = False) -> dict[str, Any]:
        """Ask every runner for its share; remote ones work while the learner updates."""
        group = self.algorithm.env_runner_group
        runners = group.num_healthy_remote_env_runners()
        steps = max(1, self.algorithm.config.sample_steps // max(1, runners))
        kwargs = {
            "num_steps": steps,
            "base_only": base_only,
            "random_actions": random_actions,
            "weights_updates": self.algorithm.published_updates,
        }
        if group.num_remote_env_runners() > 0:
            group.foreach_env_runner_async("sample_columns_ref", tag=TAG, kwargs=kwargs)
        return kwargs

    def receive(self, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        """Wait for the requested samples; batches in the order of the runners."""
        group = self.algorithm.env_runner_group
        with self.algorithm.metrics.log_time((TIMERS, "env_runner_sampling_timer")):
            if group.num_remote_env_runners() == 0:
                batches = [group.local_env_runner.sample_columns(**kwargs)]
            else:
                ready = group.fetch_ready_async_reqs(tags=TAG, timeout_seconds=None)
                batches = [batch for _, batch in sorted(ready, key=lambda item: item[0])]
                check_batches(batches)
        self.algorithm.metrics.aggregate(
            [b.pop("metrics") for b in batches], key=ENV_RUNNER_RESULTS
        )
        return batches

    def _feed(self, batches: list[dict[str, Any]]) -> None:
        """Columns to the learner by reference."""
        algorithm = self.algorithm
        if feed := account(algorithm, batches):
            algorithm._learn(batches=feed)
            lost = algorithm._on_learner(lambda learner: learner.take_lost_steps())
            write_off(algorithm, sum(lost))

    def _update(self) -> None:
        """Settle the debt: utd gradient steps per stored environment step, exactly."""
        algorithm = self.algorithm
        num_updates = int(algorithm.update_debt)
        if num_updates <= 0:
            return
        algorithm.update_debt -= num_updates
        with algorithm.metrics.log_time((TIMERS, "learner_update_timer")):
            algorithm._learn(num_updates=num_updates, residual_scale=algorithm.residual_scale)
        algorithm.updates += num_updates
