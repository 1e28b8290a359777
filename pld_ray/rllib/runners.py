"""All env runners of a run as one: ask for episodes, receive them, publish weights."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils import actor_manager
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, TIMERS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.columns import BASE_ACTION, INTERVENED, Columns
from pld_ray.data.demonstrations import Wanted
from pld_ray.rllib.config import OffPolicyConfig
from pld_ray.rllib.intake import fetch_columns
from pld_ray.rllib.learners import Learners, losses_told
from pld_ray.rllib.progress import Progress
from pld_ray.rollout.messages import (
    EnvRunnerError,
    EpisodeBatch,
    Failure,
    PublishedWeights,
    ReplayBatch,
    SampleRequest,
    without_failures,
)

TAG = "sample"
METHOD = "sample_to_store"
WAIT_S = 0.5
"""Between two looks for a runner while there is none."""

STOP_S = 20.0
"""That remote runners have to end."""

log = logging.getLogger("pld_ray")


class Runners:
    """The training runners.

    Args:
        group: RLlib's.
        metrics: the algorithm's; takes the runners' metrics.
        config: steps of a round.

    Attributes:
        on_wait: may be set to what is called again and again while no runner is there.
        on_look: called before each request and while an evaluation runs, see `end_with`.
        to_pool: may be set to what puts the present weights into a pool, where the policy plays.
        published: what it said last.
    """

    to_pool: Callable[[], PublishedWeights] | None = None
    published: PublishedWeights | None = None

    def __init__(
        self, group: EnvRunnerGroup, metrics: MetricsLogger, config: OffPolicyConfig
    ) -> None:
        self.group, self.metrics, self.config = group, metrics, config
        self.on_wait: Callable[[], None] = lambda: None
        self.on_look: Callable[[], None] = lambda: None
        self._present = set(group.healthy_env_runner_ids())

    def watch(self) -> int:
        """Say which runners have gone or come back since the last look; how many are there."""
        self.on_look()
        if self.group.num_remote_env_runners() == 0:
            return 1
        present = set(self.group.healthy_env_runner_ids())
        for runner in sorted(self._present - present):
            self.metrics.log_value("num_env_runners_lost", 1, reduce="lifetime_sum")
            log.warning("env runner %d is gone, and its open episodes with it", runner)
        for runner in sorted(present - self._present):
            log.warning("env runner %d is back", runner)
        if self._present and not present:
            log.warning("no env runner is left: nothing is sampled until one comes back")
        self._present = present
        if not present:
            self.on_wait()
            time.sleep(WAIT_S)
        return len(present)

    def end_with(self, check: Callable[[], None]) -> None:
        """Let this end a run by raising: between two requests, during an evaluation, and while a
        robot's person is waited for in this process."""
        self.on_look = check
        if self.group.num_remote_env_runners() == 0:
            self.group.local_env_runner.end_waits_with(check)

    @property
    def num_healthy(self) -> int:
        """Runners that share a round, at least 1."""
        return max(1, self.group.num_healthy_remote_env_runners())

    def request(self, **how: Any) -> SampleRequest:
        """Ask every runner for its share of a round; remote ones begin at once.

        Args:
            how: fields of `SampleRequest`.
        """
        steps = max(1, self.config.sample_steps // self.num_healthy)
        request = SampleRequest(steps, **how)
        if self.group.num_remote_env_runners() > 0:
            self.ask(request)
        return request

    def receive(self, request: SampleRequest) -> list[EpisodeBatch]:
        """Wait for what was requested; batches in the order of the runners."""
        if self.group.num_remote_env_runners() > 0:
            return self.fetch(None, request.generation)
        with self.metrics.log_time((TIMERS, "env_runner_sampling_timer")):
            batch = self.group.local_env_runner.sample_episodes(request)
        return self._aggregated([batch])

    def gather(self, request: SampleRequest) -> list[EpisodeBatch]:
        """`receive`, with the columns in this process; None where they died with their node."""
        return [replace(b, columns=fetch_columns(b.columns)) for b in self.receive(request)]

    def deliver(self, request: SampleRequest, progress: Progress, learners: Learners) -> None:
        """Wait for what was requested, count it, and give the learners what is learnt from."""
        if batches := to_store(self.receive(request), progress, self.metrics):
            progress.write_off(learners.store(batches), self.metrics)

    def ask(self, request: SampleRequest) -> bool:
        """Send a request to every remote runner; whether one of them takes another one still."""
        kwargs = {"method": METHOD, "request": request}
        return bool(self.group.foreach_env_runner_async("reply", tag=TAG, kwargs=kwargs))

    def fetch(self, timeout_s: float | None, generation: int) -> list[EpisodeBatch]:
        """Batches that are ready, in the order of the runners.

        Args:
            timeout_s: seconds to wait for the first one; None waits for all of them.
            generation: batches of other requests are left out.

        Raises:
            EnvRunnerError: a runner cannot go on.
        """
        with self.metrics.log_time((TIMERS, "env_runner_sampling_timer")):
            ready = self.group.fetch_ready_async_reqs(tags=TAG, timeout_seconds=timeout_s)
        batches = []
        for _, reply in sorted(ready, key=lambda item: item[0]):
            if isinstance(reply, Failure):
                raise reply.error()
            if reply.generation == generation:
                batches.append(reply)
        return self._aggregated(batches)

    @property
    def num_in_flight(self) -> int:
        """Requests that are not answered."""
        return self.group.num_in_flight_async_reqs(TAG)

    def publish(self, learners: Learners) -> None:
        """Actor, observation statistics and beta to every runner.

        Waits until they have arrived: RLlib otherwise skips a runner whose last sync it has not
        looked at yet, and which weights a runner acts with would depend on timing.
        """
        with self.metrics.log_time((TIMERS, "synch_weights")):
            if self.to_pool is not None:
                weights = self.published = self.to_pool()
                self.group.foreach_env_runner(
                    lambda runner: runner.take_weights(weights), timeout_seconds=None
                )
                return
            with losses_told(learners.group):
                self.group.sync_weights(
                    from_worker_or_learner_group=learners.group,
                    inference_only=True,
                    timeout_seconds=None,
                )

    def describe_environment(self) -> tuple[Wanted, str]:
        """What a dataset must have to be learnt from here, and the task, in words."""
        return ask_one(self.group, "describe_environment")

    def label_episodes(self, episodes: Sequence[Columns], task: str) -> list[Columns]:
        """Recorded episodes as the runners would have stored them; the runner that is asked is sent
        no observations of those that have base actions, and none come back.

        Raises:
            EnvRunnerError: the base policy cannot answer for them.
        """
        asked = [without_observations(e) if BASE_ACTION in e else e for e in episodes]
        labels = ask_one(self.group, "label_episodes", episodes=asked, task=task)
        return [{**episode, **made} for episode, made in zip(episodes, labels, strict=True)]

    def restart(self, seed: int, runners: list[int] | None = None) -> None:
        """New episodes, from `seed`, on these runners or every one."""
        weights = self.published

        def begin(runner: Any) -> None:
            if weights is not None:  # else RLlib has given it some
                runner.take_weights(weights)
            runner.restart_streams(seed)

        self.group.foreach_env_runner(
            begin,
            remote_worker_ids=runners,
            local_env_runner=runners is None,
            timeout_seconds=None,
        )

    def _aggregated(self, batches: list[EpisodeBatch]) -> list[EpisodeBatch]:
        if metrics := [batch.metrics for batch in batches if batch.metrics is not None]:
            self.metrics.aggregate(metrics, key=ENV_RUNNER_RESULTS)
        return batches


@contextlib.contextmanager
def busy_ones_ended(*groups: EnvRunnerGroup | None) -> Iterator[None]:
    """Remote runners that are still busy after `STOP_S` are ended as they are: RLlib waits for what
    they were asked for, and that may wait for a person."""
    manager = logging.getLogger(actor_manager.__name__)
    level = manager.level

    def end() -> None:
        present = [group._worker_manager.actors() for group in groups if group is not None]
        busy = [runner for actors in present for runner in actors.values()]
        if not busy:  # it is something else that takes its time
            return
        log.warning("an env runner is busy still, and ended as it is")
        manager.setLevel(logging.CRITICAL)  # to RLlib that is an error
        for runner in busy:
            ray.kill(runner)

    patience = threading.Timer(STOP_S, end)
    patience.daemon = True
    patience.start()
    try:
        yield
    finally:
        patience.cancel()
        manager.setLevel(level)


def ask_one(group: EnvRunnerGroup, method: str, **kwargs: Any) -> Any:
    """What a method of the first healthy runner, or of the one in this process, returns.

    Raises:
        EnvRunnerError: the method raised, or the runner has gone.
    """
    if group.num_remote_env_runners() == 0:  # RLlib passes a local one no arguments
        return without_failures([group.local_env_runner.reply(method, **kwargs)])[0]
    replies = group.foreach_env_runner(
        "reply",
        kwargs={"method": method, **kwargs},
        remote_worker_ids=group.healthy_env_runner_ids()[:1],
        local_env_runner=False,
        timeout_seconds=None,
    )
    if not replies:
        raise EnvRunnerError(f"the env runner that was asked to {method} is gone: ask again")
    return without_failures(replies)[0]


def without_observations(episode: Columns) -> Columns:
    """Its other columns."""
    return {name: v for name, v in episode.items() if not name.startswith("observation.")}


def to_store(
    batches: Sequence[EpisodeBatch], progress: Progress, metrics: MetricsLogger
) -> list[ReplayBatch]:
    """What the learners are to store of these batches; `progress` counts them, and the update debt
    grows by what will be stored."""
    feed = []
    for batch in batches:
        progress.count(batch.episodes, batch.num_env_steps, batch.control_steps, batch.late_steps)
        stored = [episode for episode in batch.episodes if episode.residual_acted]
        stale = progress.stale(stored, metrics)
        lengths, shard = batch.episode_lengths, progress.next_shard
        online = ReplayBatch(batch.columns, lengths, shard=shard, skip=stale)
        # where a person acted, however old the weights beside them: what they do is not theirs
        autonomous = [k for k, episode in enumerate(stored) if not episode.intervened]
        assisted = ReplayBatch(
            batch.columns, lengths, "offline", shard, starts=INTERVENED, skip=autonomous
        )
        feed += [part for part in (assisted, online) if part.kept]
        progress.next_shard += bool(online.kept or assisted.kept)
        progress.owe(sum(online.kept))
    return feed
