"""`experiments.circle`: what becomes of the other residuals when one of them fails."""

from __future__ import annotations

import argparse
import pathlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from experiments import circle


def arguments(*tasks: str, parallel: int) -> argparse.Namespace:
    return argparse.Namespace(tasks=list(tasks), parallel=parallel)


def test_runs_come_in_the_order_of_the_tasks(monkeypatch):
    later = threading.Event()

    def residual(task, _):
        if task == "a":
            assert later.wait(60)
        later.set()
        return pathlib.Path(task)

    monkeypatch.setattr(circle, "residual", residual)
    found = circle.residuals(arguments("a", "b", "c", parallel=2))
    assert found == [pathlib.Path(task) for task in "abc"]


def test_no_other_is_begun_once_one_has_failed(monkeypatch):
    begun, cancelled = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait=wait)

    def residual(task, _):
        begun.append(task)
        if task == "a":
            sys.exit("pld-ray train failed")
        assert cancelled.wait(60)  # those that run go on meanwhile
        return pathlib.Path(task)

    monkeypatch.setattr(circle, "residual", residual)
    monkeypatch.setattr(circle, "ThreadPoolExecutor", Pool)
    with pytest.raises(SystemExit, match="train failed"):
        circle.residuals(arguments(*"abcdefgh", parallel=2))
    assert set(begun) <= {"a", "b", "c"}
