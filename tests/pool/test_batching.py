import asyncio
import threading

import numpy as np
import pytest

from pld_ray.pool.adaptive_wait import AdaptiveWait, ServiceTime
from pld_ray.pool.batching import Batcher, Closed, Expired


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
        assert self.open.wait(30)
        if -1.0 in observations["x"]:
            raise RuntimeError("not this one")
        return observations["x"][:, None, :], None

    async def wait_for_a_batch(self):
        assert await asyncio.to_thread(self.started.acquire, timeout=30)


def rows(*values):
    x = np.array(values, dtype=np.float32)[:, None]
    return {"x": x}, [""] * len(values), list(range(len(values))), None


def submit(batcher, *values, **options):
    return asyncio.ensure_future(batcher.submit(*rows(*values), **options))


def chunks_of(reply):
    return reply.prediction.chunks.ravel().tolist()


def test_requests_that_arrive_during_an_inference_share_the_next_batch():
    async def play():
        gate = Gate(is_open=False)
        batcher = Batcher(gate, max_batch_size=4, max_wait_ms=0)
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
        assert batcher.statistics.batch_sizes == {1: 1, 3: 1, 2: 1}

    asyncio.run(play())


def test_requests_with_and_without_seeds_do_not_share_a_batch():
    async def play():
        asked = []

        def infer(observations, tasks, env_ids, seeds):
            asked.append(seeds)
            return observations["x"][:, None, :], None

        batcher = Batcher(infer, max_batch_size=8, max_wait_ms=0)
        x = {"x": np.zeros((1, 1), dtype=np.float32)}
        requests = [batcher.submit(x, [""], [0], seeds) for seeds in ([5], [6], None, None, [7])]
        await asyncio.gather(*requests)
        assert asked == [[5, 6], None, [7]]

    asyncio.run(play())


def test_a_request_larger_than_a_batch_is_one():
    async def play():
        gate = Gate()
        batcher = Batcher(gate, max_batch_size=2, max_wait_ms=0)
        assert chunks_of(await submit(batcher, 1, 2, 3)) == [1, 2, 3]
        assert gate.batches == [[1, 2, 3]]

    asyncio.run(play())


def test_without_adaptation_the_first_request_waits_for_a_full_batch():
    async def play():
        gate = Gate()
        batcher = Batcher(gate, max_batch_size=2, max_wait_ms=3.6e6, adaptive=False)
        first = submit(batcher, 1)
        await asyncio.sleep(0)
        assert not gate.batches
        await asyncio.gather(first, submit(batcher, 2))
        assert gate.batches == [[1, 2]]

    asyncio.run(play())


def test_with_adaptation_a_lone_caller_never_waits():
    async def play():
        gate = Gate()
        batcher = Batcher(gate, max_batch_size=2, max_wait_ms=3.6e6)
        for value in range(5):  # it would take hours if it waited once
            await submit(batcher, value, caller="a")
        assert gate.batches == [[0], [1], [2], [3], [4]]

    asyncio.run(play())


def test_an_error_goes_to_its_batch_only():
    async def play():
        gate = Gate(is_open=False)
        batcher = Batcher(gate, max_batch_size=2, max_wait_ms=0)
        first = submit(batcher, -1)
        await gate.wait_for_a_batch()
        mates = [submit(batcher, -1), submit(batcher, 2)]
        gate.open.set()
        failed = await asyncio.gather(first, *mates, return_exceptions=True)
        assert [str(error) for error in failed] == ["not this one"] * 3
        assert batcher.statistics.consecutive_failures == 2
        assert chunks_of(await submit(batcher, 3)) == [3]
        assert batcher.statistics.consecutive_failures == 0

    asyncio.run(play())


def test_an_answer_of_another_length_is_an_error_and_not_the_end():
    async def play():
        def infer(observations, tasks, env_ids, seeds):
            x = observations["x"]
            return x[: 1 if -1.0 in x else None, None, :], None

        batcher = Batcher(infer, max_batch_size=8, max_wait_ms=0)
        with pytest.raises(RuntimeError, match="answered 1 rows to a request of 2"):
            await submit(batcher, -1, 2)
        assert chunks_of(await submit(batcher, 3, 4)) == [3, 4]

    asyncio.run(play())


def test_requests_whose_time_is_over_or_whose_caller_has_gone_are_not_inferred():
    async def play():
        gate = Gate(is_open=False)
        batcher = Batcher(gate, max_batch_size=8, max_wait_ms=0)
        first = submit(batcher, 1)
        await gate.wait_for_a_batch()
        expired = submit(batcher, 2, expires_in_s=0)
        gone, kept = submit(batcher, 3), submit(batcher, 4)
        await asyncio.sleep(0)
        gone.cancel()
        gate.open.set()
        with pytest.raises(Expired):
            await expired
        assert chunks_of(await kept) == [4]
        await first
        assert gate.batches == [[1], [4]]
        assert batcher.statistics.expired == 1

    asyncio.run(play())


def test_draining_answers_what_is_queued_and_takes_nothing_new():
    async def play():
        gate = Gate(is_open=False)
        batcher = Batcher(gate, max_batch_size=1, max_wait_ms=0)
        queued = [submit(batcher, 1), submit(batcher, 2)]
        await gate.wait_for_a_batch()
        drained = asyncio.ensure_future(batcher.drain())
        await asyncio.sleep(0)
        with pytest.raises(Closed):
            await submit(batcher, 3)
        assert not drained.done()
        gate.open.set()
        await drained
        assert [chunks_of(reply) for reply in await asyncio.gather(*queued)] == [[1], [2]]

    asyncio.run(play())


def test_service_time_is_learnt():
    service = ServiceTime()
    assert service(5) == 0.0  # nothing is known
    service.learn(4, 0.058)
    assert service.coefficients() == (0.058, 0.0)
    for n in (1, 32, 16, 8, 3) * 4:
        service.learn(n, 0.050 + 0.002 * n)
    assert service.coefficients() == pytest.approx((0.050, 0.002), rel=1e-6)
    assert service(10) == pytest.approx(0.070)


def wait_of(service_s, waiting, returns, max_rows=32, limit=1.0):
    """Seconds that `waiting` rows wait at t=0 for callers who return at these times."""
    wait = AdaptiveWait(max_rows)
    fixed, per_row = service_s
    for n in (1, 32) * 10:
        wait.service.learn(n, fixed + per_row * n)
    for name, time in returns.items():
        # two rounds of the same habit: no deviation is left
        for start in (-20.0, -10.0):
            wait.asked(name, 1, start)
            wait.answered([name], start)
        wait._callers[name].mean, wait._callers[name].deviation = time + 1.0, 0.0
        wait._callers[name].answered = -1.0
    return wait.wait_until(waiting, 0.0, limit)


def test_waiting_pays_if_it_is_shorter_than_another_batchs_fixed_time():
    slow = (0.050, 0.002)
    assert wait_of(slow, 1, {}) == 0.0
    assert wait_of(slow, 31, {"a": 0.010}) == pytest.approx(0.010)
    assert wait_of(slow, 31, {"a": 0.049}) == pytest.approx(0.049)
    assert wait_of(slow, 31, {"a": 0.051}) == 0.0
    # all of those that come within 50 ms, and not the one who comes after
    assert wait_of(slow, 2, {"a": 0.010, "b": 0.030, "c": 0.2}) == pytest.approx(0.030)
    # a policy whose time is proportional to the rows gains nothing
    assert wait_of((0.0, 0.002), 1, {"a": 0.001, "b": 0.002}) == 0.0


def test_waiting_is_bounded_by_the_limit_and_by_a_full_batch():
    slow = (0.050, 0.002)
    assert wait_of(slow, 1, {"a": 0.010, "b": 0.030}, limit=0.020) == pytest.approx(0.010)
    assert wait_of(slow, 1, {"a": 0.010}, limit=0.005) == 0.0
    assert wait_of(slow, 3, {"a": 0.010, "b": 0.030}, max_rows=4) == pytest.approx(0.010)


def test_a_caller_who_does_not_return_is_not_waited_for_again():
    wait = AdaptiveWait(8)
    wait.service.learn(1, 0.05)
    for start in (0.0, 1.0, 2.0):
        wait.asked("a", 1, start)
        wait.answered(["a"], start + 0.9)  # asks 0.1 s after each answer
    # first deviation 0.1 / 2, then 0.75 of it: expected at 2.9 + 0.1 + 2 * 0.0375
    assert wait.wait_until(1, 3.04, 10.0) == pytest.approx(3.075)
    assert wait.wait_until(1, 3.08, 10.0) == 3.08  # overdue


def test_callers_in_lock_step_end_up_in_one_batch():
    """Event by event: a policy of 50 ms + 2 ms per row, callers who return after 1 to 8 ms."""
    wait, now = AdaptiveWait(8), 0.0
    think = {f"caller {i}": 0.001 * (i + 1) for i in range(8)}
    arrivals = dict.fromkeys(think, 0.0)
    arrivals["caller 7"] = 0.06  # out of step at first
    batches = []
    for _ in range(30):
        waiting = []
        limit = None
        while True:
            next_arrival = min(arrivals.values(), default=float("inf"))
            if waiting:
                until = wait.wait_until(len(waiting), now, limit)
                if until <= now or len(waiting) == 8:
                    break
                now = min(until, max(next_arrival, now))
            else:
                now = max(now, next_arrival)
                limit = now + 0.025
            for name in [n for n, time in arrivals.items() if time <= now]:
                wait.asked(name, 1, arrivals.pop(name))
                waiting.append(name)
        seconds = 0.050 + 0.002 * len(waiting)
        now += seconds
        wait.service.learn(len(waiting), seconds)
        wait.answered(waiting, now)
        arrivals.update({name: now + think[name] for name in waiting})
        batches.append(len(waiting))
    assert batches[0] < 8
    assert batches[-10:] == [8] * 10
