"""Queueing while a receiver is away, driven by a clock in hand and a receiver that can fail."""

from __future__ import annotations

import pytest

from pld_ray.tracking.outbox import Outbox, Refused, shorten


class Receiver:
    """Keeps what it is sent; `error` makes it fail."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.attempts = 0
        self.error: Exception | None = None

    def __call__(self, items) -> None:
        self.attempts += 1
        if self.error:
            raise self.error
        self.batches.append(list(items))


@pytest.fixture
def receiver():
    return Receiver()


@pytest.fixture
def clock():
    return [0.0]


def make(receiver, clock, **options) -> Outbox:
    options = {"limits": {int: 3, str: 2}, "retry_s": 10.0} | options
    return Outbox(receiver, "uri", clock=lambda: clock[0], **options)


def test_batches_hold_one_type_in_order_up_to_their_limit(receiver, clock):
    make(receiver, clock).put([1, 2, 3, 4, "a", "b", "c", 5, 1.5, 2.5])
    assert receiver.batches == [[1, 2, 3], [4], ["a", "b"], ["c"], [5], [1.5], [2.5]]


def test_attempts_back_off_and_order_is_kept(receiver, clock):
    outbox = make(receiver, clock)
    receiver.error = OSError("away")
    attempts = []
    for second in range(100):
        clock[0] = float(second)
        outbox.put([second])
        attempts.append(receiver.attempts)
    tried_at = [s for s in range(100) if attempts[s] != (attempts[s - 1] if s else 0)]
    assert tried_at == [0, 10, 30, 70]

    receiver.error = None
    clock[0] = 150.0
    assert outbox.flush()
    assert len(outbox) == 0
    assert [i for batch in receiver.batches for i in batch] == list(range(100))


def test_the_oldest_are_dropped_and_counted(receiver, clock, caplog):
    outbox = make(receiver, clock, capacity=4)
    receiver.error = OSError("away")
    outbox.put([1, 2, "a"])
    outbox.put([3, 4, 5])
    assert outbox.contents() == "not sent: 1 x str, 3 x int, dropped: 2 x int"
    receiver.error = None
    assert outbox.flush(force=True)
    assert receiver.batches == [["a"], [3, 4, 5]]
    assert "answers again; dropped for want of room: 2 x int" in caplog.text
    assert outbox.lost == {}
    assert outbox.contents() == ""


def test_refused_items_do_not_block_those_behind(receiver, clock, caplog):
    outbox = make(receiver, clock)
    receiver.error = Refused("bad name")
    outbox.put([1])
    receiver.error = None
    outbox.put([2])
    assert receiver.batches == [[2]]
    assert "uri refused 1 x int: bad name" in caplog.text


def test_a_long_backlog_is_sent_over_several_calls(clock):
    sent = []

    def slow(items) -> None:
        clock[0] += 1.0
        sent.extend(items)

    outbox = Outbox(slow, "uri", {}, budget_s=2.0, clock=lambda: clock[0])
    outbox.put(list(range(5)))
    assert sent == [0, 1, 2]
    assert len(outbox) == 2
    assert outbox.flush()
    assert sent == list(range(5))


def test_shorten_finds_the_innermost_reason():
    error = OSError("failed with (Caused by NewConnectionError('h: [Errno 111] refused'))")
    assert shorten(error) == "NewConnectionError('h: [Errno 111] refused')"
    assert shorten(ValueError("a\n  b")) == "a b"
    assert shorten(ValueError()) == "ValueError"
