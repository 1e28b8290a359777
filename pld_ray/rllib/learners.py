"""All learners of a run as one: calls with names, what they are given, and what they say."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError
from ray.rllib.core import ALL_MODULES, COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.metrics import LEARNER_RESULTS, TIMERS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.data.normalizer import Normalizer
from pld_ray.errors import UserError
from pld_ray.rollout.messages import PublishedWeights, ReplayBatch

log = logging.getLogger("pld_ray")

LOST = (RayActorError, OutOfMemoryError, NodeDiedError)
"""What Ray raises where a process was ended, by its memory monitor too, or a node is gone."""


class LearnerLostError(UserError, RuntimeError):
    """A learner died; the run goes on from its last checkpoint."""


@contextlib.contextmanager
def losses_told(group: LearnerGroup) -> Iterator[None]:
    """Where RLlib itself speaks to the learners: `Learners.call` tells a loss of its own accord.

    Args:
        group: of the learners.

    Raises:
        LearnerLostError: one of them is gone, now or since an earlier call.
    """
    try:
        yield
    except LOST as error:
        raise LearnerLostError(f"a learner is gone: {error}") from error
    except (IndexError, AssertionError) as error:  # RLlib takes the first of those that are left
        manager = group._worker_manager
        if manager is None or manager.num_healthy_actors() == len(group):
            raise
        raise too_few(manager.num_healthy_actors(), len(group)) from error


def too_few(answering: int, learners: int) -> LearnerLostError:
    """The error for those that do not answer."""
    return LearnerLostError(f"{answering} of {learners} learners answer; the others are gone")


@dataclass(frozen=True)
class Stored:
    """What became of batches at one learner.

    Attributes:
        lost_steps: transitions that were counted and died with their runner's node.
        online, offline: transitions in each ring of its shard.
        drops_first: the offline ring has dropped what it stored first.
    """

    lost_steps: int
    online: int
    offline: int
    drops_first: bool = False


@dataclass(frozen=True)
class Work:
    """For a learner's thread: episodes to store, then updates to make at this beta."""

    batches: Sequence[ReplayBatch] = ()
    num_updates: int = 0
    residual_scale: float | None = None


@dataclass
class LearnerReport:
    """What a learner's thread has done since it was last asked.

    Attributes:
        updates: made.
        weights: the newest publication; None if there was none.
        metrics: means of each slice of updates.
        stored: what became of the batches.
    """

    updates: int = 0
    weights: PublishedWeights | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)
    stored: Stored = Stored(0, 0, 0)


class Learners:
    """Each method is one call of the method of that name on every `OffPolicyLearner`.

    Any of them raises LearnerLostError if a learner's process or node is gone, and otherwise what
    the learner raised.

    Args:
        group: RLlib's.
        metrics: the algorithm's; takes the learners' metrics, averaged over them.
        failure_dir: folder for the batch of a loss that is not finite.

    Attributes:
        failure_dir: may be set to another folder.
        on_store: may be set to what is to see all episodes that go into the replay.
    """

    def __init__(self, group: LearnerGroup, metrics: MetricsLogger, failure_dir: str) -> None:
        self.group, self.metrics, self.failure_dir = group, metrics, failure_dir
        self.on_store: Callable[[Sequence[ReplayBatch]], None] = lambda batches: None
        self._told_of_drops = self._can_update = False

    # --- replay ----------------------------------------------------------------------------------

    def store(self, batches: Sequence[ReplayBatch]) -> int:
        """Write episodes into the replay; how many steps of them were lost with their node."""
        self.on_store(batches)
        return self._log_stored(self.call("store", batches=self._shared(batches)))

    def _shared(self, batches: Sequence[ReplayBatch]) -> list[ReplayBatch]:
        """Episodes that lie here are put into Ray's store once, and not sent to every learner."""
        if self.group.is_local:
            return list(batches)
        columns = [batch.columns for batch in batches]
        here = {id(own): own for own in columns if not isinstance(own, ray.ObjectRef)}
        put = {key: ray.put(own) for key, own in here.items()}
        return [
            replace(batch, columns=put.get(id(batch.columns), batch.columns)) for batch in batches
        ]

    def fit_normalizer(self, state: Normalizer | None = None) -> None:
        """Take observation statistics from what the replay holds, those of the state from `state`
        where it is given."""
        self.call("fit_normalizer", state=state)

    # --- updates ---------------------------------------------------------------------------------

    @property
    def can_update(self) -> bool:
        """Whether every learner's share of the replay holds something: episodes go to them in
        turn. Until then no update is made, and what is owed waits."""
        if not self._can_update:  # from then on it holds something for good
            shares: list[Stored] = self.call("held")
            self._can_update = all(share.online + share.offline > 0 for share in shares)
        return self._can_update

    def train(self, num_updates: int, residual_scale: float) -> None:
        """Updates at this beta, where there is a residual."""
        self._timed("train", num_updates=num_updates, residual_scale=residual_scale)
        self._count(num_updates)

    def initialize_critic(self, num_steps: int, residual_scale: float) -> dict[str, float]:
        """Steps of the Cal-QL initialisation at this beta; their mean metrics."""
        return self._timed("initialize_critic", num_steps=num_steps, residual_scale=residual_scale)

    def load_critic(self, checkpoint: str) -> None:
        """Take critic and observation statistics over from a checkpoint."""
        self.call("load_critic", checkpoint=checkpoint)

    def set_residual_scale(self, residual_scale: float) -> None:
        """beta from now on."""
        self.call("set_residual_scale", residual_scale=residual_scale)

    def set_temperature(self, temperature: float) -> None:
        """Put alpha, which is learnt from there on, to a value."""
        self.call("set_temperature", temperature=temperature)

    # --- updates in threads of the learners' own -------------------------------------------------

    def start_updating(self, publish_interval: int, updates: int) -> None:
        """Begin, or begin anew: `updates` were made so far."""
        self.call(
            "start_updating",
            publish_interval=publish_interval,
            updates=updates,
            failure_dir=self.failure_dir,
        )

    def submit(self, work: Work) -> None:
        """Queue episodes and updates."""
        self.on_store(work.batches)
        self.call("submit", work=replace(work, batches=self._shared(work.batches)))

    def poll(self, wait_s: float = 0.0) -> LearnerReport:
        """What was done since the last call; waits for an update at most `wait_s` seconds."""
        reports: list[LearnerReport] = self.call("poll", wait_s=wait_s)
        first = reports[0]
        if first.updates:
            self._log([means(report.metrics) for report in reports])
            self._count(first.updates)
        lost = self._log_stored([report.stored for report in reports])
        return replace(first, stored=replace(first.stored, lost_steps=lost))

    def drain(self) -> None:
        """Return when all that was submitted is done."""
        self.call("drain")

    # --- state -----------------------------------------------------------------------------------

    def save(self, folder: str) -> None:
        """Networks, optimisers, the update's state and the replay, without pickle."""
        self.call("save", folder=folder)

    def load(self, folder: str) -> None:
        """What `save` wrote."""
        self.call("load", folder=folder)

    def weights(self) -> dict[str, Any]:
        """What an env runner acts with."""
        component = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
        with losses_told(self.group):
            state = self.group.get_state(components=component, inference_only=True)
        return state[COMPONENT_LEARNER]

    def replay_sizes(self) -> tuple[int, int]:
        """Transitions in the online and in the offline replay, of all learners."""
        sizes: list[Stored] = self.call("held")
        return sum(s.online for s in sizes), sum(s.offline for s in sizes)

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """What a method returns on every learner."""
        results = list(self.group.foreach_learner(_call, method=method, arguments=arguments))
        values = [result.get() for result in results]
        failures = [v for v, result in zip(values, results, strict=True) if not result.ok]
        for failure in failures:  # the others' collectives fail for it: it is told first
            if isinstance(failure, LOST):
                raise LearnerLostError(f"a learner is gone: {failure}") from failure
        if failures:
            raise failures[0]
        learners = max(1, len(self.group))
        if len(values) < learners:
            raise too_few(len(values), learners)
        return values

    def _timed(self, method: str, **arguments: Any) -> dict[str, float]:
        with self.metrics.log_time((TIMERS, "learner_update_timer")):
            return self._log(self.call(method, failure_dir=self.failure_dir, **arguments))

    def _log(self, per_learner: Sequence[dict[str, float]]) -> dict[str, float]:
        """Mean metrics of all learners, which are logged too."""
        self._aggregate(DEFAULT_MODULE_ID, per_learner)
        return means(per_learner)

    def _log_stored(self, per_learner: Sequence[Stored]) -> int:
        """Log what the replay of all learners holds; the steps that they lost on the way.

        That the offline ring begins to drop demonstrations is said, once.
        """
        for name in ("online", "offline"):
            held = sum(getattr(stored, name) for stored in per_learner)
            self.metrics.log_value((LEARNER_RESULTS, ALL_MODULES, f"replay_{name}"), held, window=1)
        if any(stored.drops_first for stored in per_learner) and not self._told_of_drops:
            self._told_of_drops = True
            log.warning(
                "the offline replay is full: what it was filled with first, demonstrations or the "
                "base policy's successes, leaves it episode by episode for what is stored now; "
                "raise algorithm.offline_capacity to keep it"
            )
        return sum(stored.lost_steps for stored in per_learner)

    def _aggregate(self, module: str, per_learner: Sequence[Mapping[str, float]]) -> None:
        """Log what learners say; RLlib takes the mean over learners and over an iteration."""
        reduced = []
        for metrics in per_learner:
            logger = MetricsLogger()
            logger.log_dict(dict(metrics), key=module, window=1)
            reduced.append(logger.reduce())
        self.metrics.aggregate(reduced, key=LEARNER_RESULTS)

    def _count(self, num_updates: int) -> None:
        key = (LEARNER_RESULTS, ALL_MODULES, "num_updates_lifetime")
        self.metrics.log_value(key, num_updates, reduce="lifetime_sum")


def _call(learner: Any, method: str, arguments: dict[str, Any]) -> Any:
    return getattr(learner, method)(**arguments)


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the rows that have it."""
    names = sorted({name for row in rows for name in row})
    values = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}
