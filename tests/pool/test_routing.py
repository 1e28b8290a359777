import numpy as np
import pytest

from pld_ray.pool.messages import ReplicaTable
from pld_ray.pool.routing import SUSPECT_S, Router


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def table(version, **depths):
    return ReplicaTable((1, version), depths)


def router(depths, seed=0, clock=None):
    return Router(table(0, **depths), np.random.default_rng(seed), clock or Clock())


def test_requests_in_flight_are_spread_evenly():
    for names, difference in (("ab", 0), ("abcd", 2)):
        client = router(dict.fromkeys(names, 0.0))
        sent = []
        for _ in range(40):
            sent.append(client.choose())
            client.sent(sent[-1], 1)
        counts = [sent.count(name) for name in names]
        assert max(counts) - min(counts) <= difference


def test_a_client_stays_until_a_newer_table_comes():
    client = router({"a": 0, "b": 0})
    home = client.choose()
    other = "b" if home == "a" else "a"
    for _ in range(20):
        client.sent(home, 1)
        client.released(home, 1)
        client.answered(home, other_rows=30)  # ever so crowded
        assert client.choose() == home
    moves = 0
    for version in range(1, 201):
        client.home = home
        client.update(table(version, **{home: 30, other: 0}))
        moves += client.choose() == other
    assert 70 < moves < 130  # each moves with probability one half


def test_callers_in_lock_step_even_out_instead_of_herding():
    clients = [router({"a": 0, "b": 0, "c": 0, "d": 0}, seed) for seed in range(64)]
    for client in clients:
        client.home = "a"
    spread = []
    for version in range(1, 30):
        places = [client.home for client in clients]
        news = table(version, **{name: places.count(name) for name in "abcd"})
        for client in clients:
            client.update(news)
            name = client.choose()
            client.sent(name, 1)
            client.released(name, 1)
            client.answered(name, other_rows=None)
        counts = [[client.home for client in clients].count(name) for name in "abcd"]
        spread.append(max(counts) - min(counts))
    assert max(spread[8:]) <= 12
    assert np.mean(spread[8:]) <= 8  # from 64


def test_an_older_table_is_ignored_and_a_removed_replica_left():
    client = router({"a": 0, "b": 0})
    client.update(table(2, a=0))
    client.update(table(1, b=0))
    assert client.choose() == "a"
    client.update(ReplicaTable((2, 0), {"c": 0}))  # of a controller that was restarted
    assert client.choose() == "c"
    client.update(ReplicaTable((2, 1), {}))
    assert client.choose() is None


def test_a_lost_replica_is_asked_only_if_there_is_no_other():
    clock = Clock()
    client = router({"a": 0, "b": 0}, clock=clock)
    client.suspect("a")
    assert {client.choose() for _ in range(20)} == {"b"}
    assert client.choose(avoid=["b"]) == "a"
    assert client.choose(avoid=["a", "b"]) is None
    clock.now = SUSPECT_S + 1
    client.update(table(1, a=0, b=30))
    assert "a" in {client.choose() for _ in range(20)} | {client.home}


@pytest.mark.parametrize("rows", [1, 7])
def test_nothing_stays_in_flight(rows):
    client = router({"a": 0, "b": 0})
    for _ in range(2):
        client.sent("a", rows)
    client.released("a", rows)
    assert client.in_flight == {"a": rows}
    client.released("a", rows)
    assert not client.in_flight


def test_a_newer_table_counts_for_more_than_what_answers_told():
    client = router({"a": 30, "b": 0})
    moves = 0
    for version in range(1, 101):
        client.home = "a"
        client.answered("a", other_rows=0)
        client.update(table(version, a=30, b=0))
        moves += client.choose() == "b"
    assert 30 < moves < 70  # as `a` were empty, none


def test_a_late_replica_that_answers_is_as_good_as_another():
    for seed in range(20):
        client = router({"a": 0, "b": 0}, seed)
        client.suspect("a")
        client.suspect("b")
        client.answered("a", other_rows=None)
        assert client.choose() == "a"
