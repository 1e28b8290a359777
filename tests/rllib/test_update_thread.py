"""The learner's thread: order, exact counts, publications, pauses, errors."""

from __future__ import annotations

import threading
import time

import pytest

from pld_ray.rllib.learners import Work
from pld_ray.rllib.update_thread import SLICE_UPDATES, UpdateThread


class Recorder:
    """Stands for the networks: remembers what was done to them."""

    def __init__(self):
        self.log = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def store(self, work):
        self.log.append(("store", len(work.batches), work.residual_scale))

    def update(self, n):
        self.entered.release()
        self.gate.wait()
        self.log.append(("update", n))
        return {"loss": float(n)}

    def publish(self, updates):
        self.log.append(("publish", updates))
        return f"weights {updates}"


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def start(recorder):
    threads = []

    def make(publish_interval=50, updates=0):
        threads.append(
            UpdateThread(
                recorder.store, recorder.update, recorder.publish, publish_interval, updates
            )
        )
        return threads[-1]

    yield make
    recorder.gate.set()
    for thread in threads:
        thread.stop()


def test_work_is_done_in_order_and_every_update_is_counted_once(start, recorder):
    thread = start()
    thread.submit(Work([{}, {}], 50, 0.3))
    thread.submit(Work([{}], 7, 0.4))
    thread.drain()
    report = thread.poll()
    assert report.updates == 57
    assert thread.poll().updates == 0
    stores = [entry for entry in recorder.log if entry[0] == "store"]
    assert stores == [("store", 2, 0.3), ("store", 1, 0.4)]
    slices = [entry[1] for entry in recorder.log if entry[0] == "update"]
    assert slices == [SLICE_UPDATES, SLICE_UPDATES, 10, 7]
    assert [f["loss"] for f in report.metrics] == slices


def test_weights_are_published_at_the_start_and_every_interval_with_the_right_count(
    start, recorder
):
    thread = start(publish_interval=40, updates=1000)
    assert thread.poll().weights == "weights 1000"
    thread.submit(Work(num_updates=100))
    thread.drain()
    published = [entry[1] for entry in recorder.log if entry[0] == "publish"]
    assert published == [1000, 1040, 1080]
    assert thread.poll().weights == "weights 1080"
    assert thread.poll().weights is None


def test_a_reader_gets_in_between_two_slices_of_a_long_job(start, recorder):
    thread = start()
    recorder.gate.clear()
    thread.submit(Work(num_updates=1000 * SLICE_UPDATES))
    recorder.entered.acquire()  # the first slice is being made
    seen = []

    def read():
        with thread.paused():
            seen.append(len(recorder.log))

    reader = threading.Thread(target=read)
    reader.start()
    while not thread._readers:  # until it asks
        time.sleep(0.001)
    recorder.gate.set()
    reader.join(60)
    assert seen
    assert seen[0] < 1000, "the reader had to wait for the whole job"
    thread.drain()
    assert thread.poll().updates == 1000 * SLICE_UPDATES


def test_one_that_is_abandoned_ends_after_the_slice_that_it_is_at(start, recorder, monkeypatch):
    thread = start()
    recorder.gate.clear()
    thread.submit(Work([{}], 1000 * SLICE_UPDATES, 0.3))
    thread.submit(Work([{}, {}], 5, 0.4))
    recorder.entered.acquire()  # the first slice is being made
    stop = thread.stop  # where `abandon` waits for the slice
    monkeypatch.setattr(thread, "stop", lambda: (recorder.gate.set(), stop()))
    thread.abandon()
    assert not thread._thread.is_alive()
    assert recorder.log[1:] == [("store", 1, 0.3), ("update", SLICE_UPDATES)]
    thread.drain()  # waits for nothing


def test_an_error_is_raised_to_whoever_asks_and_later_work_is_not_done(start, recorder):
    def fail(n):
        raise FloatingPointError("not finite")

    thread = UpdateThread(recorder.store, fail, recorder.publish, 50)
    thread.submit(Work(num_updates=1))
    thread.submit(Work([{}]))
    thread.drain()
    with pytest.raises(FloatingPointError, match="not finite"):
        thread.poll()
    assert [entry for entry in recorder.log if entry[0] == "store"] == [("store", 0, None)]
    thread.stop()
