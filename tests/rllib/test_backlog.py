"""What the asynchronous loop leaves to a learner that is slower than a robot."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.rllib.asynchronous import AsynchronousLoop
from pld_ray.rllib.learners import LearnerReport, Stored
from pld_ray.rllib.progress import Progress
from pld_ray.rollout.episode import EpisodeSummary
from pld_ray.rollout.messages import EpisodeBatch

LENGTH, UTD = 200, 2.0


@dataclass
class Item:
    """Work that was submitted: episodes that are not stored yet, updates that are left."""

    episodes: int
    updates: int


class SlowLearners:
    """In the order of `UpdateThread`, at so many updates for each episode that comes."""

    def __init__(self, rate):
        self.rate, self.stored = rate, 0
        self.queue = deque()

    @property
    def can_update(self):
        return self.stored > 0

    def start_updating(self, *given):
        pass

    def submit(self, work):
        self.queue.append(Item(len(work.batches), work.num_updates))

    def work(self, updates):
        """How many of these are made."""
        left = updates
        while self.queue:
            item = self.queue[0]
            self.stored += item.episodes
            done = min(left, item.updates)
            item.episodes, item.updates, left = 0, item.updates - done, left - done
            if item.updates:
                break
            self.queue.popleft()
        return updates - left

    def poll(self, wait_s=0.0):
        return LearnerReport(self.work(self.rate), stored=Stored(0, 0, 0))

    def drain(self):
        self.drained = sum(item.updates for item in self.queue)
        self.rate = self.drained


class Robot:
    """A runner that brings an episode at each look."""

    num_healthy, num_in_flight = 1, 2

    def __init__(self):
        self.metrics = MetricsLogger(root=True)

    def ask(self, request):
        return False

    def fetch(self, timeout_s, generation):
        return [EpisodeBatch({}, [LENGTH], [EpisodeSummary(False, LENGTH, 0)], LENGTH)]


class FailedLearner(SlowLearners):
    """One of several that met an error: the others' updates wait for it and never end."""

    def poll(self, wait_s=0.0):
        raise ValueError("a NaN in reward")

    def drain(self):
        pytest.fail("waits for updates that nobody makes")


def loop_of(learners):
    config = SimpleNamespace(publish_interval=50)
    progress = Progress(ResidualScaleSchedule(ResidualSACParams()), UTD, phase="online")
    return AsynchronousLoop(config, progress, learners, Robot())


def test_a_checkpoint_hears_of_a_learner_that_failed():
    loop = loop_of(FailedLearner(rate=1))
    loop.outstanding = 20
    with pytest.raises(ValueError, match="a NaN in reward"):
        loop.drain()


@pytest.mark.parametrize("sample_steps", [1, 100])
def test_what_a_learner_cannot_make_stays_owed(sample_steps):
    """In its queue it would keep episodes out of the replay, and checkpoints and stops waiting."""
    config = SimpleNamespace(
        control_hz=20.0,
        sample_steps=sample_steps,
        num_envs_per_env_runner=1,
        utd=UTD,
        publish_interval=50,
        stall_timeout_s=600.0,
    )
    progress = Progress(ResidualScaleSchedule(ResidualSACParams()), UTD, phase="online")
    learners = SlowLearners(rate=150)
    loop = AsynchronousLoop(config, progress, learners, Robot())
    loop.start()
    limit = 2 * LENGTH * UTD
    for episodes in range(1, 501):
        loop.step()
        assert loop.outstanding <= limit
        # those of which the updates that are queued before them are not made yet
        assert episodes - learners.stored <= limit / learners.rate
        made = progress.updates + loop.outstanding
        assert made + progress.update_debt == UTD * progress.stored_steps
    assert progress.update_debt > 100_000
    loop.drain()
    assert learners.drained <= limit
    assert (loop.outstanding, learners.stored) == (0, 500)
    assert progress.updates + progress.update_debt == UTD * progress.stored_steps


def test_however_small_the_limit_an_update_is_made():
    """Of a tenth for each step, and requests of one step."""
    config = SimpleNamespace(control_hz=20.0, sample_steps=1, num_envs_per_env_runner=1, utd=0.1)
    loop = AsynchronousLoop(config, Progress(None, 0.1), None, Robot())
    assert 0 < loop.backlog_limit(1) < 1
    assert loop._room() == 1
    loop.outstanding = 1
    assert loop._room() == 0
