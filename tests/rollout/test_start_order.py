"""Episodes come in the order in which they began, whoever ends first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.rollout.episode import EpisodeSummary
from pld_ray.rollout.messages import EpisodeBatch
from pld_ray.rollout.start_order import StartOrder, ended_episodes


def batch(starts, oldest):
    columns = {"reward": np.repeat(np.float32(starts), 2)} if starts else {}
    summaries = [EpisodeSummary(True, 1, 0, start=start) for start in starts]
    return EpisodeBatch(columns, [1] * len(starts), summaries, 1, oldest)


def taken(order, batches):
    for ended in ended_episodes(batches):
        order.add(ended)
    return [summary.start for _, _, summary in order.take(batches)]


def test_an_episode_waits_for_those_that_began_before_it():
    order = StartOrder()
    rounds = (
        [batch([3], 0), batch([0], 2)],  # one that began at 0 is open still
        [batch([0], 5), batch([], 2)],
        [batch([5], 9), batch([2, 2], 9)],  # a runner that was replaced counts anew
    )
    assert [taken(order, batches) for batches in rounds] == [[], [0, 0], [2, 2, 3, 5]]
    assert order.held_back == []


def test_when_clocks_begin_anew_what_is_held_back_comes_first():
    order = StartOrder()
    assert taken(order, [batch([7, 9], 5)]) == []
    order.begin_anew()
    assert taken(order, [batch([0], 2)]) == [7, 9, 0]


def test_what_is_held_back_keeps_its_order_over_restarts():
    order = StartOrder()
    assert taken(order, [batch([20], 5), batch([10], 5)]) == []
    order.begin_anew()
    for ended in ended_episodes([batch([3], 0), batch([2], 0)]):
        order.add(ended)
    order.begin_anew()
    assert taken(order, [batch([0], 1), batch([], 1)]) == [10, 20, 2, 3, 0]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_nothing_is_lost_and_the_order_is_that_of_the_starts(lengths):
    """One environment after the other on two runners, each asked for five steps a round."""
    spans, clock = [], [0, 0]
    for number, length in enumerate(lengths):
        runner = number % 2
        spans.append((runner, clock[runner], clock[runner] + length))
        clock[runner] += length
    order, came, now = StartOrder(), [], 0
    while now <= max(clock):
        now += 5
        batches = []
        for runner in range(2):
            mine = [(start, end) for r, start, end in spans if r == runner]
            ended = [start for start, end in mine if now - 5 < end <= now]
            batches.append(batch(ended, max([s for s, _ in mine if s <= now], default=0)))
        came += taken(order, batches)
    left = [float(episode["reward"][0]) for episode in order.held_back]
    assert came == sorted(came)
    assert sorted([*came, *left]) == sorted(start for _, start, _ in spans)
