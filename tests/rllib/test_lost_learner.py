"""A learner that is gone is told as such wherever it is noticed, and the run goes on without it."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest
from chaos import POINT_RUN
from ray.exceptions import ActorDiedError, NodeDiedError, OutOfMemoryError
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.actor_manager import (
    FaultTolerantActorManager,
    RemoteCallResults,
    ResultOrError,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.cli import main
from pld_ray.rllib.learners import LearnerLostError, Learners
from pld_ray.rllib.off_policy import OffPolicy
from pld_ray.rllib.runners import Runners


class Manager(FaultTolerantActorManager):
    """RLlib's, whose actors answer a call with this error."""

    def __init__(self, error, number):
        super().__init__([object()] * number)
        self.error = error

    def foreach_actor(self, func, *, remote_actor_ids=None, **how):
        results = RemoteCallResults()
        for actor in remote_actor_ids or self.healthy_actor_ids():
            self.set_actor_state(actor, healthy=False)
            results.add_result(actor, ResultOrError(error=self.error), None)
        return results


class Group(LearnerGroup):
    """RLlib's, of learners in processes of their own."""

    is_local = False

    def __init__(self, error=None, number=1):
        self.config = SimpleNamespace(num_learners=number)
        self._worker_manager = Manager(error, number)
        self._workers, self._learner = self._worker_manager.actor_ids(), None
        self._is_shut_down = True

    def get_metadata(self):
        return {}

    def get_ctor_args_and_kwargs(self):
        return (), {}


class EnvRunners:
    """In this process; `sync_weights` is RLlib's own."""

    local_env_runner = None
    sync_weights = EnvRunnerGroup.sync_weights

    def num_remote_workers(self):
        return 1


def publish(group, folder):
    runners = Runners.__new__(Runners)
    runners.group, runners.metrics = EnvRunners(), MetricsLogger(root=True)
    runners.publish(learners_of(group))


def save(group, folder):
    algorithm = OffPolicy.__new__(OffPolicy)
    algorithm.learner_group, algorithm.asynchronous = group, None
    algorithm.save_to_path(str(folder))


def learners_of(group):
    return Learners(group, MetricsLogger(root=True), "")


CALLS = {
    "train": lambda group, folder: learners_of(group).train(5, 0.5),
    "weights": lambda group, folder: learners_of(group).weights(),
    "publish": publish,
    "save": save,
}


@pytest.fixture
def of_the_learners_alone(monkeypatch):
    """RLlib's checkpoint without an algorithm's other parts."""
    monkeypatch.setattr(
        Algorithm, "save_to_path", lambda self, path, **how: self.learner_group.save_to_path(path)
    )


@pytest.mark.usefixtures("of_the_learners_alone")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "error", [ActorDiedError(), OutOfMemoryError("by the memory monitor"), NodeDiedError("away")]
)
def test_it_is_told_by_whatever_notices_it(call, error, tmp_path):
    with pytest.raises(LearnerLostError, match="a learner is gone"):
        CALLS[call](Group(error), tmp_path)


@pytest.mark.usefixtures("of_the_learners_alone")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [1, 2])
def test_it_is_told_again_by_what_comes_later(call, number, tmp_path):
    group = Group(ActorDiedError(), number)
    group._worker_manager.set_actor_state(0, healthy=False)
    told = f"{number - 1} of {number} learners answer"
    if number == 2 and call in ("save", "train"):  # asks the other one, which is lost too
        told = "a learner is gone"
    with pytest.raises(LearnerLostError, match=told):
        CALLS[call](group, tmp_path)


@pytest.mark.parametrize("error", [IndexError("of its own"), AssertionError("of its own")])
@pytest.mark.parametrize("call", ["weights", "publish"])
def test_another_mistake_stays_what_it_is(call, error, tmp_path):
    group = Group(number=2)

    def fail(func, **how):
        raise error

    group._worker_manager.foreach_actor = fail
    with pytest.raises(type(error), match="of its own"):
        CALLS[call](group, tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("place", ["publish", "save"])
def test_a_run_goes_on_from_its_checkpoint(place, tmp_path, monkeypatch, ray_cluster, capsys):
    """With rounds, where publishing or a checkpoint is what notices it first."""
    of, method = {"publish": (Runners, "publish"), "save": (OffPolicy, "save_checkpoint")}[place]
    original, killed = getattr(of, method), []

    def kill_first(self, given):
        learners = given if place == "publish" else self.learners
        if not killed and list(folder.glob("checkpoints/step_*")):
            (result,) = learners.group.foreach_learner(lambda learner: os.getpid())
            killed.append(result.get())
            os.kill(killed[0], signal.SIGKILL)
        return original(self, given)

    monkeypatch.setattr(of, method, kill_first)
    folder = tmp_path / "run"
    flags = [flag.replace("=asynchronous", "=pipelined") for flag in POINT_RUN]
    flags += ["--runners.num_env_runners=1", "--runners.num_learners=1", "--total_steps=2500"]
    assert main(["train", *flags, "--tracking.enabled=false", f"--output_dir={folder}"]) == 0
    assert killed
    assert "going on from the last checkpoint" in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["env_steps"] >= 2500
