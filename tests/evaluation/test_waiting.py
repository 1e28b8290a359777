"""An evaluation whose runners have all gone waits for one; the real ones are in tests/chaos."""

import logging

import pytest

from pld_ray.evaluation.play import EpisodeResult
from pld_ray.evaluation.requests import Contestant, Evaluation
from pld_ray.rllib.runners import ask_one
from pld_ray.rollout.messages import EnvRunnerError


class Group:
    """One runner that answers at once, while it is there."""

    def __init__(self):
        self.healthy, self.asked = [], []

    def num_remote_env_runners(self):
        return 1

    def healthy_env_runner_ids(self):
        return self.healthy

    def foreach_env_runner_async(self, method, *, tag, kwargs, remote_worker_ids):
        self.asked.append((remote_worker_ids[0], kwargs["init_state_ids"]))
        return 1

    def num_in_flight_async_reqs(self, tag):
        return len(self.asked)

    def fetch_ready_async_reqs(self, tags, timeout_seconds):
        asked, self.asked = self.asked, []
        return [(runner, [result(i) for i in ids]) for runner, ids in asked]


def result(state):
    return EpisodeResult(True, 1.0, 1.0, 3, init_state_id=state)


def test_it_plays_every_state_once_somebody_is_back(caplog):
    group, looks = Group(), []

    def restore():
        looks.append(1)
        if len(looks) == 3:
            group.healthy = [1]

    evaluation = Evaluation(group, [4, 2, 7], {"residual": Contestant()}, restore)
    with caplog.at_level(logging.WARNING, "pld_ray"):
        episodes = evaluation.wait()["residual"]
    assert [episode.init_state_id for episode in episodes] == [4, 2, 7]
    assert len(looks) == 3
    assert [r.message for r in caplog.records].count(
        "no env runner is left to evaluate: waiting until one comes back"
    ) == 1


def test_where_nobody_looks_for_one_it_gives_up():
    with pytest.raises(RuntimeError, match="no env runner is alive"):
        Evaluation(Group(), [1], {"residual": Contestant()}).wait()


@pytest.mark.parametrize("restored_by", ["the evaluation", "somebody else"])
def test_a_runner_that_died_and_is_back_between_two_looks_is_dealt_its_share_again(restored_by):
    class Dies(Group):
        lives = 1

        def fetch_ready_async_reqs(self, tags, timeout_seconds):
            if self.lives:
                self.lives, self.asked = 0, []
                self.healthy = [] if restored_by == "the evaluation" else [1]
                return []
            return super().fetch_ready_async_reqs(tags, timeout_seconds)

    group = Dies()
    group.healthy = [1]
    evaluation = Evaluation(
        group, [4, 2, 7], {"residual": Contestant()}, lambda: group.healthy.append(1)
    )
    for _ in range(10):
        if (results := evaluation.poll()) is not None:
            break
    assert results is not None, "it waits for what nobody plays"
    assert [episode.init_state_id for episode in results["residual"]] == [4, 2, 7]


def test_a_runner_that_goes_while_it_is_asked_for_something_is_named():
    class Gone(Group):
        def foreach_env_runner(self, method, **how):
            return []

    with pytest.raises(EnvRunnerError, match="asked to film is gone"):
        ask_one(Gone(), "film", init_state_id=0)


class Busy(Group):
    """Runners that answer one after the other, the newest first."""

    def __init__(self, runners):
        super().__init__()
        self.healthy, self.dealt = list(range(1, runners + 1)), []

    def num_remote_env_runners(self):
        return len(self.healthy)

    def foreach_env_runner_async(self, method, *, tag, kwargs, remote_worker_ids):
        assert remote_worker_ids[0] not in [runner for runner, _ in self.asked], "it is busy"
        self.dealt.append((kwargs["contestant"].residual, kwargs["init_state_ids"]))
        return super().foreach_env_runner_async(
            method, tag=tag, kwargs=kwargs, remote_worker_ids=remote_worker_ids
        )

    def fetch_ready_async_reqs(self, tags, timeout_seconds):
        runner, ids = self.asked.pop()
        return [(runner, [result(i) for i in ids])]


def test_each_state_is_dealt_once_a_contestant_in_small_shares():
    group = Busy(2)
    states = [5, 4, 3, 3, 2, 1, 0, 5, 8]  # seven of them, four shares
    contestants = {"base": Contestant(residual=False), "residual": Contestant()}
    results = Evaluation(group, states, contestants).wait()
    for residual in (False, True):
        shares = [ids for who, ids in group.dealt if who == residual]
        assert shares == [[5, 4], [3, 2], [1, 0], [8]]
    for episodes in results.values():
        assert [episode.init_state_id for episode in episodes] == states
