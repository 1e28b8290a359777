import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.pool.metrics import ReplicaStatistics, added_up, latency_ms


def test_busy_share_is_of_the_last_minute_or_since_ready():
    statistics = ReplicaStatistics(now=100.0)
    assert statistics.busy_share(110.0) == 0.0
    statistics.started(3, 110.0)
    assert statistics.busy_share(120.0) == pytest.approx(10 / 20)  # in work counts
    assert statistics.busy_for(120.0) == 10.0
    statistics.finished(3, 0, 130.0)
    assert statistics.busy_share(150.0) == pytest.approx(20 / 50)
    assert statistics.busy_share(180.0) == pytest.approx(10 / 60)  # 120 to 130 of 120 to 180
    assert statistics.busy_for(180.0) == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 40), st.floats(0, 90), st.integers(0, 3)), max_size=30),
    st.floats(0, 200),
)
def test_the_busy_share_is_that_of_all_batches_one_by_one(batches, later):
    statistics, now, work = ReplicaStatistics(now=5.0), 5.0, []
    for idle, busy, asks in batches:
        statistics.started(1, now + idle)
        work.append((now + idle, now + idle + busy))
        now = work[-1][1]
        statistics.finished(1, 0, now)
        for ask in range(asks):
            statistics.busy_share(now + ask / 10)
        now += asks / 10
    now += later
    start = max(5.0, now - 60.0)
    worked = sum(max(0.0, end - max(begin, start)) for begin, end in work)
    assert statistics.busy_share(now) * max(now - start, 1e-9) == pytest.approx(worked, abs=1e-6)


def test_mean_depth_is_over_the_time_since_it_was_asked_for():
    statistics = ReplicaStatistics(now=0.0)
    statistics.depth(4, 1.0)
    statistics.depth(2, 2.0)
    assert statistics.mean_depth(4.0) == pytest.approx((0 * 1 + 4 * 1 + 2 * 2) / 4)
    assert statistics.mean_depth(5.0) == pytest.approx(2.0)


def test_percentiles_of_latencies():
    latencies = [i / 1000 for i in range(101)]
    assert latency_ms(latencies) == pytest.approx({"p50": 50.0, "p95": 95.0, "p99": 99.0})
    assert all(math.isnan(value) for value in latency_ms([]).values())


def test_counts_of_several_replicas_add_up():
    snapshots = []
    for sizes in ((2, 2, 3), (3,)):
        statistics = ReplicaStatistics(now=0.0)
        for size in sizes:
            statistics.called(attempt=size - 2, missed=1)
            statistics.started(size, 0.0)
            statistics.finished(size, 0, 0.0)
            statistics.answered(0.1)
        snapshots.append(statistics.snapshot(1.0))
    assert added_up(snapshots) == {
        "requests": 4,
        "batches": 4,
        "rows": 10,
        "retries": 2,
        "deadline_misses": 4,
        "refused": 0,
        "batch_sizes": {2: 2, 3: 2},
    }


def test_a_batch_of_more_than_a_minute_keeps_a_replica_busy_all_the_time():
    statistics = ReplicaStatistics(now=0.0)
    statistics.started(1, 0.0)
    assert statistics.busy_share(90.0) == 1.0
    statistics.finished(1, 0, 100.0)
    assert statistics.busy_share(100.0) == 1.0
    assert statistics.busy_share(130.0) == pytest.approx(30 / 60)
