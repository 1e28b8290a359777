"""A pool of a policy made by arithmetic: replicas that die, hang, drain, come and go."""

import concurrent.futures
import itertools
import time
import urllib.request

import numpy as np
import pytest
import ray
from pool_policies import AddingPolicy

from pld_ray.policies import ChunkCache
from pld_ray.pool import BasePolicyPool, PoolSpec
from pld_ray.pool.exchange import NAMESPACE

ADDING = "pool_policies:make_adding"
CRASH, HANG = AddingPolicy.CRASH, AddingPolicy.HANG
FAIL, WAIT = AddingPolicy.FAIL, AddingPolicy.WAIT
PATIENT = (120.0, 60.0)
"""Deadline and lateness (s) for what is answered at once, unless the machine is busy."""


pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def make_pool():
    pools = []

    def make(folder=None, rtc=False, **options):
        arguments = {"folder": None if folder is None else str(folder), "rtc": rtc}
        settings = {"num_cpus_per_replica": 0.1, "deadline_s": 120.0, "max_wait_ms": 1, **options}
        pools.append(BasePolicyPool(PoolSpec(arguments=arguments, make_policy=ADDING, **settings)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.stop()


def ask(client, *values):
    x = np.array(values, dtype=np.float32)[:, None]
    rows = len(values)
    answer = client.infer({"x": x}, [""] * rows, list(range(rows)), [10] * rows)
    return answer.chunks[:, 0, 0].tolist()


def until(condition, seconds=120.0):
    """Waits for something that another process brings about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def waiting(folder):
    return len(list(folder.glob("waiting-*")))


@pytest.mark.parametrize("rtc", [False, pytest.param(True, marks=pytest.mark.chaos)])
def test_two_replicas_answer_as_one_inline_policy(make_pool, rtc):
    """Chunks and features come from one inference; what raises is asked of each replica once."""
    pool = make_pool(replicas=2, rtc=rtc)
    inline = AddingPolicy(rtc=rtc)
    played = []
    for policy in (inline, pool.client()):
        cache = ChunkCache(policy, num_envs=3, seed=1, prefetch=True)
        steps = []
        for t in range(9):
            x = np.array([[t], [10 + t], [20 + t]], dtype=np.float32)
            if t == 4:
                cache.reset([1])
            steps.append((cache.act({"x": x}, [""] * 3).copy(), cache.features.copy()))
        played.append((steps, cache.num_inferences))
    for ours, theirs in zip(played[1][0], played[0][0], strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])
    metrics = pool.metrics()
    assert played[0][1] == played[1][1] == metrics["requests"]
    assert metrics["retries"] == 0
    client = pool.client()
    with pytest.raises(RuntimeError, match="the policy cannot"):
        ask(client, FAIL)
    assert ask(client, 1) == [11.0]
    assert pool.metrics()["retries"] == 1


@pytest.mark.chaos
def test_figures_reach_rays_metrics_endpoint(make_pool):
    pool = make_pool()
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def exported():
        ask(pool.client(), 1)
        text = urllib.request.urlopen(address, timeout=30).read().decode()
        names = ("queue_depth", "busy_share", "batch_size_count", "latency_ms_count")
        lines = [line for line in text.splitlines() if f'pool="{pool.name}"' in line]
        return all(any(f"base_policy_{n}{{" in line for line in lines) for n in names)

    until(exported)


def test_the_only_replica_dies_mid_request_and_its_successor_answers(make_pool, tmp_path):
    pool = make_pool(tmp_path)
    client = pool.client()
    assert ask(client, 1) == [11.0]
    (before,) = pool.metrics()["replicas"]
    assert ask(client, CRASH, 2) == [CRASH + 10, 12.0]
    assert (tmp_path / "crashed").exists()
    metrics = pool.metrics()
    assert metrics["restarts"] == 1
    assert metrics["retries"] >= 1
    assert metrics["replicas"][0]["pid"] != before["pid"]


def test_a_hung_replica_is_replaced_and_its_request_answered(make_pool, tmp_path):
    pool = make_pool(tmp_path, hang_timeout_s=3.0)  # on a busy machine a poll takes a second
    assert ask(pool.client(), HANG) == [HANG + 10]
    assert (tmp_path / "hung").exists()
    assert pool.metrics()["restarts"] == 1


def test_a_late_replica_does_not_delay_the_answer_of_another(make_pool, tmp_path):
    pool = make_pool(tmp_path, replicas=2, late_after_s=0.5)
    client = pool.client(seed=0)
    # the replica that hangs is left alone for the minute of hang_timeout_s
    assert ask(client, HANG) == [HANG + 10]
    assert (tmp_path / "hung").exists()
    client._limits = PATIENT
    for value in range(5):  # and it is not asked again
        assert ask(client, value) == [value + 10]
    metrics = pool.metrics()
    assert metrics["restarts"] == 0
    assert metrics["retries"] == 1
    assert sorted(replica["requests"] for replica in metrics["replicas"]) == [0, 6]


def test_a_request_without_an_answer_fails_at_its_deadline(make_pool, tmp_path):
    pool = make_pool(tmp_path, deadline_s=2.0, max_batch_size=1)
    client = pool.client()
    hurried, client._limits = client._limits, PATIENT
    assert ask(client, 0) == [10.0]  # they know each other
    client._limits = hurried
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        blocked = thread.submit(ask, client, WAIT)
        until(lambda: waiting(tmp_path) == 1)
        with pytest.raises(TimeoutError, match=r"within deadline_s=2 \(.*no answer"):
            ask(client, 1)
        with pytest.raises(TimeoutError, match="raise the deadline"):
            blocked.result()
    (tmp_path / "go").touch()
    client._limits = PATIENT
    assert ask(client, 2) == [12.0]
    metrics = pool.metrics()
    assert metrics["deadline_misses"] == 2
    # the second one's time was over in the queue: it was never computed
    assert metrics["batch_sizes"] == {1: 3}


@pytest.mark.chaos
def test_replicas_are_added_and_removed_with_the_load(make_pool, tmp_path):
    pool = make_pool(
        tmp_path,
        max_replicas=2,
        max_batch_size=1,
        scale_up_after_s=0.5,
        scale_down_after_s=1.0,
    )
    client = pool.client()
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        copies = [ray.get(ray.put(client)) for _ in range(6)]
        blocked = [threads.submit(ask, copy, WAIT) for copy in copies]
        until(lambda: pool.metrics()["num_replicas"] == 2)
        (tmp_path / "go").touch()
        assert [future.result() for future in blocked] == [[WAIT + 10]] * 6
    until(lambda: finds_both_replicas(copies, pool))
    until(lambda: pool.metrics()["num_replicas"] == 1)
    for copy in copies:  # their tables are older than the removal
        assert ask(copy, 3) == [13.0]
    metrics = pool.metrics()
    assert metrics["restarts"] == 0
    assert metrics["requests"] == sum(metrics["batch_sizes"].values())


def finds_both_replicas(clients, pool):
    """Clients learn of a new replica from the answers of an old one."""
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(ask, clients, itertools.count()))
    served = [replica["requests"] for replica in pool.metrics()["replicas"]]
    return len(served) == 2 and all(served)


@pytest.mark.chaos
def test_a_controller_that_dies_comes_back_with_new_replicas(make_pool):
    pool = make_pool()
    client = pool.client()
    assert ask(client, 1) == [11.0]
    ray.kill(ray.get_actor(pool.name, namespace=NAMESPACE), no_restart=False)
    assert ask(ray.get(ray.put(client)), 2) == [12.0]
    assert ask(client, 3) == [13.0]
    until(lambda: pool.metrics()["num_replicas"] == 1)


def test_a_policy_that_does_not_load_is_named():
    with pytest.raises(RuntimeError, match="did not start: FileNotFoundError: no such weights"):
        BasePolicyPool(PoolSpec(make_policy="pool_policies:make_broken", num_cpus_per_replica=0.1))
    with pytest.raises(ValueError, match=r"make_policy 'pool_policies\.nothing' cannot be loaded"):
        BasePolicyPool(PoolSpec(make_policy="pool_policies.nothing"))


def test_a_replica_that_would_load_another_policy_takes_no_part(make_pool, tmp_path):
    """The policy's folder was overwritten while the pool ran, and a replica dies."""
    pool = make_pool(folder=tmp_path, deadline_s=2.0)
    client = pool.client()
    hurried, client._limits = client._limits, PATIENT
    assert ask(client, 1) == [11.0]
    client._limits = hurried
    (tmp_path / "fingerprint").write_text("another")

    def why():
        with pytest.raises(TimeoutError) as raised:
            ask(client, CRASH)
        return str(raised.value)

    until(lambda: "loads another policy (another) than the pool began with (adding)" in why())
    (tmp_path / "fingerprint").unlink()
    until(lambda: pool.metrics()["num_replicas"] == 1)
    client._limits = PATIENT
    assert ask(client, 2) == [12.0]


def test_a_cluster_that_is_too_small_is_said_at_once(make_pool):
    with pytest.raises(RuntimeError, match=r"1 replicas need 1 GPU each; .* together 0"):
        make_pool(num_gpus_per_replica=1)
    with pytest.raises(RuntimeError, match=r"4 replicas need 2 CPU each; .* together 6"):
        make_pool(num_cpus_per_replica=2, replicas=4)
    with pytest.raises(RuntimeError, match=r"need 1 arm_server each; the largest node has 0"):
        make_pool(resources={"arm_server": 1})
