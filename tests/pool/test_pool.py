import concurrent.futures
import os
import signal
import time

import numpy as np
import pytest
import ray

from pld_ray.policies import BasePolicy, ChunkCache, load_base_policy
from pld_ray.pool import BasePolicyPool, PoolSpec
from pld_ray.pool.exchange import NAMESPACE


@pytest.fixture(scope="module")
def pool(act_directory, ray_cluster):
    spec = PoolSpec(
        arguments={"path": str(act_directory)},
        replicas=2,
        max_batch_size=8,
        max_wait_ms=20,
        num_cpus_per_replica=0.5,
    )
    pool = BasePolicyPool(spec)
    yield pool
    pool.stop()


@pytest.fixture(scope="module")
def inline(act_directory):
    return load_base_policy(act_directory)


def ask(policy, observations):
    rows = len(observations["observation.state"])
    answer = policy.infer(observations, ["task"] * rows, list(range(rows)), list(range(rows)))
    return answer.chunks


def ask_concurrently(client, requests):
    """Each request from its own thread with its own copy of the client."""
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as threads:
        clients = [ray.get(ray.put(client)) for _ in requests]
        return list(threads.map(ask, clients, requests))


def test_client_describes_the_policy(pool, inline):
    client = pool.client()
    assert isinstance(client, BasePolicy)
    assert client.action_dim == inline.action_dim
    assert client.n_action_steps == inline.n_action_steps
    assert client.input_features == inline.input_features
    assert client.fingerprint == inline.fingerprint


def test_concurrent_callers_each_get_their_own_answer(pool, inline, act_observations):
    before = pool.metrics()["batch_sizes"]
    requests = [act_observations(1 + i % 3, seed=i) for i in range(16)] * 2
    answers = ask_concurrently(pool.client(seed=0), requests)
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, ask(inline, request))
    after = pool.metrics()
    formed = {n: c - before.get(n, 0) for n, c in after["batch_sizes"].items()}
    rows = sum(len(r["observation.state"]) for r in requests)
    assert sum(n * c for n, c in formed.items()) == rows
    assert sum(formed.values()) < len(requests)  # callers shared batches
    assert max(n for n, c in formed.items() if c) <= 8
    assert after["queue_depth"] == 0
    for replica in after["replicas"]:
        latency = replica["latency_ms"]
        if replica["requests"]:
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
            assert 0 < replica["busy_share"] < 1


def test_a_request_larger_than_a_batch_is_answered(pool, inline, act_observations):
    request = act_observations(21, seed=3)
    np.testing.assert_array_equal(ask(pool.client(), request), ask(inline, request))


def test_client_works_in_another_process_and_behind_a_chunk_cache(pool, inline, act_observations):
    @ray.remote(num_cpus=0.5)
    def act(client, observations):
        cache = ChunkCache(client, num_envs=3)
        return [cache.act(observations, ["task"] * 3) for _ in range(5)], cache.num_inferences

    observations = act_observations(3, seed=4)
    actions, inferences = ray.get(act.remote(pool.client(), observations))
    chunks = ask(inline, observations)
    expected = [*np.moveaxis(chunks[:, : inline.n_action_steps], 1, 0), chunks[:, 0]]
    np.testing.assert_array_equal(actions, expected)
    assert inferences == 2


def test_a_bad_request_is_refused_and_spoils_no_other(pool, inline, act_observations):
    client = pool.client()
    good = act_observations(2, seed=5)
    with pytest.raises(ValueError, match=r"needs \['observation\.environment_state'\]"):
        client.infer({"observation.state": good["observation.state"]}, ["", ""], [0, 1])
    bad = {**good, "observation.state": np.zeros((2, 9), dtype=np.float32)}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        refused = [threads.submit(ask, pool.client(), bad) for _ in range(4)]
        answered = [threads.submit(ask, pool.client(), good) for _ in range(4)]
        for future in refused:
            with pytest.raises(ValueError, match=r"has shape \(2, 9\)"):
                future.result()
        for future in answered:
            np.testing.assert_array_equal(future.result(), ask(inline, good))


def test_a_killed_replica_is_survived_and_replaced(pool, inline, act_observations):
    pids = [replica["pid"] for replica in pool.metrics()["replicas"]]
    client = pool.client(seed=1)
    requests = [act_observations(2, seed=100 + i) for i in range(12)]
    expected = [ask(inline, request) for request in requests]
    ask(client, requests[0])  # handles are open, so the loss is met in mid-conversation
    with concurrent.futures.ThreadPoolExecutor(4) as threads:

        def repeat(worker):
            own = ray.get(ray.put(client))
            return [ask(own, request) for _ in range(10) for request in requests]

        running = [threads.submit(repeat, i) for i in range(4)]
        os.kill(pids[0], signal.SIGKILL)
        for future in running:
            for i, answer in enumerate(future.result()):
                np.testing.assert_array_equal(answer, expected[i % len(requests)])
    end = time.monotonic() + 300
    metrics = pool.metrics()
    while len(metrics["replicas"]) < 2 or None in metrics["replicas"]:  # those that answer
        assert time.monotonic() < end
        time.sleep(0.1)
        metrics = pool.metrics()
    survivor, successor = metrics["replicas"]
    assert survivor["pid"] == pids[1]
    assert successor["pid"] not in pids
    assert metrics["restarts"] == 1


def test_submitted_requests_are_answered_in_any_order(pool, inline, act_observations):
    client = pool.client()
    requests = [act_observations(2, seed=200 + i) for i in range(6)]
    pending = [client.submit(request, ["", ""], [0, 1], [0, 1]) for request in requests]
    pending.pop(2).cancel()
    requests.pop(2)
    for request, one in reversed(list(zip(requests, pending, strict=True))):
        answer = one.result()
        np.testing.assert_array_equal(answer.chunks, ask(inline, request))
        assert answer.features is None
        assert one.result() is answer


def test_prefetched_chunks_equal_an_inline_policys(pool, inline, act_observations):
    seen = [act_observations(3, seed=300 + t) for t in range(11)]
    played = []
    for policy in (inline, pool.client()):
        cache = ChunkCache(policy, num_envs=3, prefetch=True)
        actions = []
        for t, observations in enumerate(seen):
            if t == 6:
                cache.reset([1])
            actions.append(cache.act(observations, ["task"] * 3))
        played.append((np.stack(actions), cache.num_rows))
    np.testing.assert_array_equal(played[0][0], played[1][0])
    assert played[0][1] == played[1][1]


def test_leftovers_for_a_policy_that_takes_none_are_refused(pool, act_observations):
    with pytest.raises(ValueError, match=r"takes no leftovers: load it with rtc=True"):
        pool.client().submit(act_observations(1, 0), [""], [0], [0], np.zeros((1, 2, 7)))


def test_stop_leaves_no_actors_and_clients_say_so(pool, act_observations):  # the pool's last test
    client = pool.client()
    names = [pool.name, *(replica["name"] for replica in pool.metrics()["replicas"])]
    ask(client, act_observations(1, 0))
    pool.stop()
    for name in names:
        with pytest.raises(ValueError):
            ray.get_actor(name, namespace=NAMESPACE)
    for late in (client, ray.get(ray.put(client))):
        with pytest.raises(ConnectionError, match="no base-policy replica answered"):
            ask(late, act_observations(1, 0))
    pool.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        pool.metrics()
