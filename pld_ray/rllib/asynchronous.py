"""Sampling and learning side by side: neither waits for the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS, TIMERS

from pld_ray.rllib.accounting import account, write_off
from pld_ray.rllib.update_thread import Work
from pld_ray.rollout.messages import PublishedWeights, check_batches

if TYPE_CHECKING:
    from pld_ray.rllib.algorithm import ResidualSAC

REQUEST_TAG = "sample_with"
POLL_S = 0.05  # the driver looks this often; requests in flight keep everyone busy meanwhile
MIN_STEPS = 50
"""Of a request to a runner, which costs it as much as several steps however few it asks for."""
BACKLOG_ROUNDS = 2
"""Rounds whose updates may be outstanding before runners have to wait, see `backlog_limit`."""


class AsynchronousLoop:
    """Keeps requests in flight at every runner and work queued at the learner.

    A runner's request carries a reference to the newest published weights, so that publishing needs
    no call of its own and a restarted runner is never behind by more than its next request. The
    update debt is submitted to the learner as soon as it arises. If the learner falls behind by
    more than `backlog_limit`, runners wait: data is never turned away.
    """

    def __init__(self, algorithm: ResidualSAC) -> None:
        self.algorithm = algorithm
        self.generation = 0
        self.outstanding = 0
        self.longest_episode = 0
        self.weights: PublishedWeights | None = None

    def start(self) -> None:
        """Begin, or begin anew after a restore: what was asked for before is not taken."""
        self.generation += 1
        self.outstanding = 0
        interval = self.algorithm.config.publish_interval
        self.algorithm._on_learner(
            lambda learner, **kw: learner.start_updating(**kw),
            publish_interval=interval,
            updates=self.algorithm.updates,
            failure_dir=self.algorithm.failure_dir or self.algorithm.logdir,
        )
        self._collect()

    def step(self) -> None:
        """Take what the runners have, keep them busy, hand the learner its work."""
        algorithm = self.algorithm
        self._request()
        batches = self._fetch()
        feed = account(algorithm, batches)
        allowance = max(0, int(algorithm.update_debt))
        if feed or allowance:
            algorithm.update_debt -= allowance
            self.outstanding += allowance
            work = Work(feed, allowance, algorithm.residual_scale)
            algorithm._on_learner(lambda learner, work: learner.submit(work), work=work)
        # with nothing asked of the runners there is nothing else to wait for
        idle = algorithm.env_runner_group.num_in_flight_async_reqs(REQUEST_TAG) == 0
        self._collect(wait_s=POLL_S if idle else 0.0)

    def drain(self) -> None:
        """Return when the learner has made every update that was submitted."""
        self.algorithm._on_learner(lambda learner: learner.drain())
        self._collect()

    def _request(self) -> None:
        """Fill up every runner's requests, unless the learner is behind."""
        algorithm = self.algorithm
        config, group = algorithm.config, algorithm.env_runner_group
        runners = max(1, group.num_healthy_remote_env_runners())
        if self.outstanding > self.backlog_limit(runners):
            return
        kwargs = {
            "num_steps": max(MIN_STEPS, config.sample_steps // runners),
            "base_only": False,
            "weights": self.weights,
            "generation": self.generation,
            "stall_timeout_s": config.stall_timeout_s,
        }
        while group.foreach_env_runner_async("sample_with", tag=REQUEST_TAG, kwargs=kwargs):
            pass

    def backlog_limit(self, runners: int) -> float:
        """Updates of `BACKLOG_ROUNDS` rounds.

        A round is `sample_steps`, or the longest episode of every environment if that is more:
        episodes arrive whole, and all of them may end at the same time.
        """
        config = self.algorithm.config
        episodes = runners * config.num_envs_per_env_runner * self.longest_episode
        return BACKLOG_ROUNDS * max(config.sample_steps, episodes) * config.utd

    def _fetch(self) -> list[dict[str, Any]]:
        """Batches that are ready, in the order of the runners; waits `POLL_S` at most."""
        algorithm = self.algorithm
        with algorithm.metrics.log_time((TIMERS, "env_runner_sampling_timer")):
            ready = algorithm.env_runner_group.fetch_ready_async_reqs(
                tags=REQUEST_TAG, timeout_seconds=POLL_S
            )
        batches = [batch for _, batch in sorted(ready, key=lambda item: item[0])]
        check_batches(batches)
        batches = [b for b in batches if b["generation"] == self.generation]
        lengths = [n for b in batches for n in b["episode_lengths"]]
        self.longest_episode = max([self.longest_episode, *lengths])
        metrics = [m for b in batches if (m := b.pop("metrics")) is not None]
        if metrics:
            algorithm.metrics.aggregate(metrics, key=ENV_RUNNER_RESULTS)
        return batches

    def _collect(self, wait_s: float = 0.0) -> None:
        """What the learner has done since; waits for something at most `wait_s`."""
        algorithm = self.algorithm
        told = algorithm._on_learner(lambda learner, wait_s: learner.poll(wait_s), wait_s=wait_s)
        updates, weights = told[0].updates, told[0].weights
        write_off(algorithm, sum(t.lost_steps for t in told))
        self.outstanding -= updates
        algorithm.updates += updates
        self.weights = weights or self.weights
        if updates:
            algorithm.metrics.aggregate([t.metrics for t in told], key=LEARNER_RESULTS)
