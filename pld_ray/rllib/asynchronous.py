"""Sampling and learning side by side: neither waits for the other."""

from __future__ import annotations

import math

from pld_ray.rllib.config import OffPolicyConfig
from pld_ray.rllib.learners import Learners, Work
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import Runners, to_store
from pld_ray.rollout.messages import EpisodeBatch, PublishedWeights, SampleRequest

POLL_S = 0.05  # the driver looks this often; requests in flight keep everyone busy meanwhile
MIN_STEPS = 50
"""Of a request to a runner, which costs it as much as several steps however few it asks for."""
METRICS_INTERVAL_S = 1.0  # a runner's metrics cost the driver more than its columns
BACKLOG_ROUNDS = 2
"""Rounds whose updates may be outstanding before runners have to wait, see `backlog_limit`."""


class AsynchronousLoop:
    """Keeps requests in flight at every runner and work queued at the learner.

    A runner's request carries a reference to the newest published weights, so that publishing needs
    no call of its own and a restarted runner is never behind by more than its next request. The
    update debt is submitted to the learner as soon as it arises. If the learner falls behind by
    more than `backlog_limit`, runners wait: data is never turned away. A robot at its control rate
    does not wait: what is beyond the limit stays owed, or new episodes, checkpoints and stops would
    wait for it in the learner's queue.

    Args:
        config: `sampling` and what belongs to it.
        progress, learners, runners: of the run.
    """

    def __init__(
        self, config: OffPolicyConfig, progress: Progress, learners: Learners, runners: Runners
    ) -> None:
        self.config = config
        self.progress, self.learners, self.runners = progress, learners, runners
        self.generation = 0
        self.outstanding = 0
        self.longest_episode = 0
        self.weights: PublishedWeights | None = None

    def start(self) -> None:
        """Begin, or begin anew after a restore: what was asked for before is not taken."""
        self.generation += 1
        self.outstanding = 0
        self.learners.start_updating(self.config.publish_interval, self.progress.updates)
        self._poll()

    def step(self) -> None:
        """Take what the runners have, keep them busy, hand the learner its work."""
        progress = self.progress
        self._request()
        feed = to_store(self._fetch(), progress, self.runners.metrics)
        room = self._room() if self.learners.can_update else 0
        num_updates = progress.take_debt(at_most=room)
        if feed or num_updates:
            self.learners.submit(Work(feed, num_updates, progress.residual_scale))
            self.outstanding += num_updates
        # with nothing asked of the runners there is nothing else to wait for
        self._poll(wait_s=0.0 if self.runners.num_in_flight else POLL_S)

    def drain(self) -> None:
        """Return when the learner has made every update that was submitted."""
        while self.outstanding > 0:  # where one learner fails the others wait for it in vain
            self._poll(POLL_S)
        self.learners.drain()
        self._poll()

    def backlog_limit(self, num_runners: int) -> float:
        """Updates of `BACKLOG_ROUNDS` rounds.

        A round is `sample_steps`, or the longest episode of every environment if that is more:
        episodes arrive whole, and all of them may end at the same time.
        """
        config = self.config
        episodes = num_runners * config.num_envs_per_env_runner * self.longest_episode
        return BACKLOG_ROUNDS * max(config.sample_steps, episodes) * config.utd

    def _room(self) -> int | None:
        """Updates that may be submitted now; None for any number, where runners wait."""
        if self.config.control_hz is None:
            return None
        return max(0, math.ceil(self.backlog_limit(self.runners.num_healthy) - self.outstanding))

    def _request(self) -> None:
        """Fill up every runner's requests, unless the learner is behind: a robot at its control
        rate is not held up even then."""
        num_runners = self.runners.num_healthy
        is_behind = self.outstanding > self.backlog_limit(num_runners)
        if is_behind and self.config.control_hz is None:
            return
        request = SampleRequest(
            max(MIN_STEPS, self.config.sample_steps // num_runners),
            intervene=True,
            env_steps=self.progress.env_steps,
            weights=self.weights,
            generation=self.generation,
            stall_timeout_s=self.config.stall_timeout_s,
            metrics_interval_s=METRICS_INTERVAL_S,
        )
        while self.runners.ask(request):
            pass

    def _fetch(self) -> list[EpisodeBatch]:
        """Batches that are ready; waits `POLL_S` at most."""
        batches = self.runners.fetch(POLL_S, self.generation)
        lengths = [n for batch in batches for n in batch.episode_lengths]
        self.longest_episode = max([self.longest_episode, *lengths])
        return batches

    def _poll(self, wait_s: float = 0.0) -> None:
        """What the learners have done since; waits for something at most `wait_s`."""
        report = self.learners.poll(wait_s)
        self.progress.write_off(report.stored.lost_steps, self.runners.metrics)
        self.outstanding -= report.updates
        self.progress.updates += report.updates
        self.weights = report.weights or self.weights
