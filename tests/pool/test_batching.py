import asyncio
import threading
import time

import numpy as np
import pytest

from pld_ray.policies import Prediction
from pld_ray.pool import batching
from pld_ray.pool.batching import Batcher, merge
from pld_ray.pool.messages import Request
from pld_ray.pool.metrics import ReplicaStatistics


class Gate:
    """An `infer` that keeps its batches, echoes x and waits until it is let through."""

    def __init__(self, is_open=True):
        self.open = threading.Event()
        self.started = threading.Semaphore(0)
        self.batches = []
        if is_open:
            self.open.set()

    def __call__(self, observations, tasks, env_ids, seeds):
        self.batches.append(observations["x"].ravel().tolist())
        self.started.release()
        assert self.open.wait(60)
        if -1.0 in observations["x"]:
            raise RuntimeError("not this one")
        return Prediction(observations["x"][:, None, :])

    async def wait_for_a_batch(self):
        assert await asyncio.to_thread(self.started.acquire, timeout=60)


def request(*values, **options):
    x = np.array(values, dtype=np.float32)[:, None]
    return Request({"x": x}, [""] * len(values), list(range(len(values))), **options)


def make(infer, max_batch_size, max_wait_ms=0, statistics=None):
    return Batcher(infer, max_batch_size, max_wait_ms, statistics or ReplicaStatistics(0.0))


def submit(batcher, *values, **options):
    return asyncio.ensure_future(batcher.submit(request(*values, **options)))


def chunks_of(reply):
    return reply.prediction.chunks.ravel().tolist()


def test_requests_that_arrive_during_an_inference_share_the_next_batch():
    async def play():
        gate = Gate(is_open=False)
        statistics = ReplicaStatistics(0.0)
        batcher = make(gate, max_batch_size=4, statistics=statistics)
        first = submit(batcher, 1)
        await gate.wait_for_a_batch()
        later = [submit(batcher, 2), submit(batcher, 3, 4), submit(batcher, 5, 6)]
        await asyncio.sleep(0)
        assert batcher.queue_depth == 6
        gate.open.set()
        replies = await asyncio.gather(first, *later)
        assert [chunks_of(reply) for reply in replies] == [[1], [2], [3, 4], [5, 6]]
        # a request is never split: 2+3,4 make three rows, and 5,6 do not fit any more
        assert gate.batches == [[1], [2, 3, 4], [5, 6]]
        # what the others had there when the batch started, waiting ones included
        assert [reply.other_rows for reply in replies] == [0, 4, 3, 0]
        assert batcher.queue_depth == 0
        assert statistics.batch_sizes == {1: 1, 3: 1, 2: 1}

    asyncio.run(play())


def test_requests_with_and_without_seeds_do_not_share_a_batch():
    async def play():
        asked = []

        def infer(observations, tasks, env_ids, seeds):
            asked.append(seeds)
            return Prediction(observations["x"][:, None, :])

        batcher = make(infer, max_batch_size=8)
        await asyncio.gather(
            *(submit(batcher, 0, seeds=seeds) for seeds in ([5], [6], None, None, [7]))
        )
        assert asked == [[5, 6], None, [7]]

    asyncio.run(play())


def test_a_request_larger_than_a_batch_is_one():
    async def play():
        gate = Gate()
        batcher = make(gate, max_batch_size=2)
        assert chunks_of(await submit(batcher, 1, 2, 3)) == [1, 2, 3]
        assert gate.batches == [[1, 2, 3]]

    asyncio.run(play())


async def slow_batch(gate, batcher, seconds, *values):
    """Answers one batch that takes so long."""
    gate.open.clear()
    while gate.started.acquire(blocking=False):
        pass  # of batches before
    answers = [submit(batcher, value) for value in values]
    await gate.wait_for_a_batch()
    await asyncio.sleep(seconds)
    gate.open.set()
    await asyncio.gather(*answers)


def test_callers_in_lock_step_share_their_batches(monkeypatch):
    monkeypatch.setattr(batching, "WAIT_SHARE", 1e5)  # a wait that is not ended takes an hour

    async def play():
        gate = Gate()
        batcher = make(gate, max_batch_size=8, max_wait_ms=3.6e6)
        await slow_batch(gate, batcher, 0.03, 0, 1, 2)
        await slow_batch(gate, batcher, 0.03, 3, 4)  # two of three come back: not waited for yet
        first = submit(batcher, 5)
        await asyncio.sleep(0.05)
        assert len(gate.batches) == 2
        await asyncio.gather(first, submit(batcher, 6))  # as many as were answered: that is all
        assert gate.batches == [[0, 1, 2], [3, 4], [5, 6]]

    asyncio.run(asyncio.wait_for(play(), 60))


def test_callers_out_of_step_and_lone_ones_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(batching, "WAIT_SHARE", 1e6)

    async def play():
        gate = Gate()
        lone = make(gate, max_batch_size=8, max_wait_ms=3.6e6)
        for value in range(4):  # it has come back: nobody else is to come
            await submit(lone, value)
        assert gate.batches == [[0], [1], [2], [3]]
        gate.batches.clear()
        playing = make(gate, max_batch_size=8, max_wait_ms=3.6e6)
        await slow_batch(gate, playing, 0.01, 0, 1, 2)
        await submit(playing, 3)  # one of three
        await submit(playing, 4)
        impatient = make(gate, max_batch_size=8, max_wait_ms=0)
        for _ in range(2):
            await slow_batch(gate, impatient, 0.01, 5, 6)
        await submit(impatient, 7)
        assert gate.batches == [[0, 1, 2], [3], [4], [5, 6], [5, 6], [7]]

    asyncio.run(play())


def test_an_error_goes_to_its_batch_only():
    async def play():
        gate = Gate(is_open=False)
        statistics = ReplicaStatistics(0.0)
        batcher = make(gate, max_batch_size=2, statistics=statistics)
        first = submit(batcher, -1)
        await gate.wait_for_a_batch()
        mates = [submit(batcher, -1), submit(batcher, 2)]
        gate.open.set()
        failed = await asyncio.gather(first, *mates, return_exceptions=True)
        assert [str(error) for error in failed] == ["not this one"] * 3
        assert statistics.consecutive_failures == 2
        assert chunks_of(await submit(batcher, 3)) == [3]
        assert statistics.consecutive_failures == 0

    asyncio.run(play())


def test_an_answer_of_another_length_is_an_error_and_not_the_end():
    async def play():
        def infer(observations, tasks, env_ids, seeds):
            x = observations["x"]
            return Prediction(x[: 1 if -1.0 in x else None, None, :])

        batcher = make(infer, max_batch_size=8)
        with pytest.raises(RuntimeError, match="answered 1 rows to a request of 2"):
            await submit(batcher, -1, 2)
        assert chunks_of(await submit(batcher, 3, 4)) == [3, 4]

    asyncio.run(play())


def test_requests_whose_time_is_over_or_whose_caller_has_gone_are_not_inferred():
    async def play():
        gate = Gate(is_open=False)
        batcher = make(gate, max_batch_size=8)
        first = submit(batcher, 1)
        await gate.wait_for_a_batch()
        expired = submit(batcher, 2, expires_in_s=0)
        gone, kept = submit(batcher, 3), submit(batcher, 4)
        await asyncio.sleep(0)
        gone.cancel()
        gate.open.set()
        assert (await expired).outcome == "not begun in time"
        assert chunks_of(await kept) == [4]
        await first
        assert gate.batches == [[1], [4]]
        assert batcher.queue_depth == 0

    asyncio.run(play())


def test_draining_answers_what_is_queued_and_takes_nothing_new():
    async def play():
        gate = Gate(is_open=False)
        batcher = make(gate, max_batch_size=1)
        queued = [submit(batcher, 1), submit(batcher, 2)]
        await gate.wait_for_a_batch()
        drained = asyncio.ensure_future(batcher.drain())
        await asyncio.sleep(0)
        assert (await submit(batcher, 3)).outcome == "draining"
        assert not drained.done()
        gate.open.set()
        await drained
        assert [chunks_of(reply) for reply in await asyncio.gather(*queued)] == [[1], [2]]

    asyncio.run(play())


def test_requests_with_and_without_leftovers_share_a_batch():
    left = np.ones((2, 3, 1), dtype=np.float32)
    left[1] = np.nan
    batch = [request(0, 1), request(2, 3, leftovers=left), request(4)]
    merged = merge(batch)
    assert merged["leftovers"][:, 0, 0].tolist()[2] == 1.0
    assert np.isnan(merged["leftovers"][[0, 1, 3, 4]]).all()
    assert merged["leftovers"].shape == (5, 3, 1)
    assert "leftovers" not in merge(batch[:1])  # policies without rtc know no such argument


def test_requests_of_two_versions_of_the_weights_do_not_share_a_batch():
    async def play():
        asked = []

        def infer(observations, tasks, env_ids, seeds, weights):
            asked.append((weights, observations["x"].ravel().tolist()))
            return Prediction(observations["x"][:, None, :])

        batcher = make(infer, max_batch_size=8)
        versions = [(1, False), (1, False), (2, False), (2, True)]
        await asyncio.gather(
            *(submit(batcher, k, weights=version) for k, version in enumerate(versions))
        )
        assert asked == [((1, False), [0, 1]), ((2, False), [2]), ((2, True), [3])]

    asyncio.run(play())


def test_a_caller_who_goes_during_the_inference_leaves_the_others_their_rows():
    async def play():
        gate = Gate(is_open=False)
        statistics = ReplicaStatistics(0.0)
        batcher = make(gate, max_batch_size=8, statistics=statistics)
        one, gone, other = submit(batcher, 1), submit(batcher, 2, 3), submit(batcher, 4)
        await gate.wait_for_a_batch()
        gone.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        assert [chunks_of(await each) for each in (one, other)] == [[1], [4]]
        assert gate.batches == [[1, 2, 3, 4]]
        batcher.close()
        assert (await submit(batcher, 5)).outcome == "draining"
        assert statistics.refused == 1

    asyncio.run(play())


def test_half_of_the_rows_that_come_back_are_in_lock_step(monkeypatch):
    monkeypatch.setattr(batching, "WAIT_SHARE", 1e6)

    async def play():
        gate = Gate()
        batcher = make(gate, max_batch_size=8, max_wait_ms=3.6e6)
        await asyncio.gather(submit(batcher, 0, 1), submit(batcher, 2, 3))
        await submit(batcher, 4, 5)  # two rows of four
        first = submit(batcher, 6)
        for _ in range(9):
            await asyncio.sleep(0)
        await asyncio.gather(first, submit(batcher, 7))
        assert gate.batches == [[0, 1, 2, 3], [4, 5], [6, 7]]

    asyncio.run(play())


def test_nobody_is_waited_for_once_a_batch_is_full_or_the_replica_drains(monkeypatch):
    monkeypatch.setattr(batching, "WAIT_SHARE", 1e6)

    async def play():
        gate = Gate()
        batcher = make(gate, max_batch_size=3, max_wait_ms=3.6e6)
        await slow_batch(gate, batcher, 0, 0, 1, 2)
        gate.open.clear()
        answers = [submit(batcher, value) for value in (3, 4, 5)]
        await gate.wait_for_a_batch()
        answers += [submit(batcher, 6, 7, 8)]  # before the others were answered
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.wait_for(asyncio.gather(*answers), 60)
        await asyncio.gather(submit(batcher, 9), submit(batcher, 10, 11))
        last = submit(batcher, 12)
        await asyncio.sleep(0)
        await asyncio.wait_for(batcher.drain(), 60)
        assert chunks_of(await last) == [12]
        assert gate.batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12]]

    asyncio.run(play())


def test_draining_ends_with_the_last_batch():
    async def play():
        go_on = threading.Event()

        def infer(observations, tasks, env_ids, seeds):
            assert 1.0 in observations["x"] or go_on.wait(60)
            return Prediction(observations["x"][:, None, :])

        batcher = make(infer, max_batch_size=1)
        first, last = submit(batcher, 1), submit(batcher, 2)
        await asyncio.sleep(0)
        drained = asyncio.ensure_future(batcher.drain())
        await first
        assert not drained.done()
        go_on.set()
        await drained
        assert last.done()

    asyncio.run(play())


@pytest.mark.parametrize("kind", [ValueError, KeyError, MemoryError])
def test_whatever_the_policy_raises_goes_to_the_callers_and_is_not_the_end(kind):
    async def play():
        def infer(observations, tasks, env_ids, seeds):
            if -1.0 in observations["x"]:
                raise kind("not this one")
            return Prediction(observations["x"][:, None, :])

        batcher = make(infer, max_batch_size=8)
        with pytest.raises(kind, match="not this one"):
            await asyncio.wait_for(submit(batcher, -1), 60)
        assert chunks_of(await submit(batcher, 3)) == [3]

    asyncio.run(play())


def test_more_rows_than_were_asked_for_are_an_error_too():
    async def play():
        batcher = make(lambda **_: Prediction(np.zeros((3, 1, 1), np.float32)), max_batch_size=8)
        with pytest.raises(RuntimeError, match="answered 3 rows to a request of 2"):
            await submit(batcher, 1, 2)

    asyncio.run(play())


def test_a_latency_is_from_the_arrival_to_the_answer():
    async def play():
        gate = Gate(is_open=False)
        statistics = ReplicaStatistics(0.0)
        batcher = make(gate, max_batch_size=8, statistics=statistics)
        before = time.monotonic()
        answer = submit(batcher, 1)
        await gate.wait_for_a_batch()
        arrived = time.monotonic()
        gate.open.set()
        opened = time.monotonic()
        await answer
        (latency,) = statistics.latencies
        assert opened - arrived <= latency <= time.monotonic() - before

    asyncio.run(play())
