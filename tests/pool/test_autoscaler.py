from pld_ray.pool import PoolSpec
from pld_ray.pool.autoscaler import Pressure, scale


def play(spec, loads, replicas=1):
    """The number of replicas after each (time, depth)."""
    pressure, counts = Pressure(), []
    for now, depth in loads:
        replicas, pressure = scale(spec, pressure, replicas, depth, now)
        counts.append(replicas)
    return counts


SPEC = PoolSpec(max_replicas=4, max_batch_size=8, scale_up_after_s=2, scale_down_after_s=10)


def test_as_many_are_added_as_a_lasting_load_needs():
    assert play(SPEC, [(0, 20), (1, 20), (2, 20)]) == [1, 1, 3]
    assert play(SPEC, [(0, 8), (100, 8)]) == [1, 1]  # just what one carries
    assert play(SPEC, [(0, 1000), (2, 1000)]) == [1, 4]


def test_a_short_burst_adds_nothing():
    assert play(SPEC, [(0, 20), (1, 20), (1.5, 3), (2, 20), (3, 20), (4, 20)])[:5] == [1] * 5


def test_one_is_removed_at_a_time_and_slowly():
    loads = [(float(t), 0.0) for t in range(41)]
    counts = play(SPEC, loads, replicas=4)
    assert [counts.index(n) for n in (3, 2, 1)] == [10, 20, 30]
    assert counts[-1] == 1  # never below the minimum


def test_none_is_removed_that_would_be_added_again():
    # 8 rows fit one replica exactly: not enough of a margin to give up the second
    assert play(SPEC, [(float(t), 8.0) for t in range(30)], replicas=2) == [2] * 30
    assert play(SPEC, [(float(t), 6.4) for t in range(11)], replicas=2)[-1] == 1


def test_the_minimum_is_restored_at_once():
    assert play(PoolSpec(replicas=3, max_replicas=4, max_batch_size=8), [(0, 0)], replicas=1) == [3]


def test_without_a_maximum_nothing_changes():
    spec = PoolSpec(replicas=2, max_batch_size=8, scale_up_after_s=0, scale_down_after_s=0)
    assert play(spec, [(0, 1000), (10, 1000), (20, 0), (30, 0)], replicas=2) == [2] * 4
