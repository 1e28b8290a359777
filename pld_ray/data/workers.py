"""Jobs over processes that end with their parent, however it ends."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any


class WorkerDied(RuntimeError):
    """A process ended in the middle of a job; `args` holds its exit code."""


def run_jobs(
    function: Callable[[Any], Any], jobs: Sequence[Any], num_workers: int
) -> Iterator[tuple[Any, Any]]:
    """Yield (job, result) as they come; a result is what `function` returned or raised.

    Args:
        function: of one job; importable, as are its exceptions.
        jobs: each goes to the first process that is free.
        num_workers: processes; with 1 the jobs run here.
    """
    if num_workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, attempt(function, job)
        return
    context = multiprocessing.get_context("spawn")  # works from any process, forked ones too
    waiting = list(reversed(jobs))
    workers: dict[Connection, tuple[Any, Any]] = {}

    def start() -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(function, theirs), daemon=True)
        process.start()
        theirs.close()
        give(ours, process)

    def give(connection: Connection, process: Any) -> None:
        job = waiting.pop()
        workers[connection] = (process, job)
        with contextlib.suppress(OSError):  # it has died: `wait` tells of it next
            connection.send(job)

    try:
        while waiting and len(workers) < num_workers:
            start()
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                process, job = workers.pop(ready)
                try:
                    result = ready.recv()
                except (EOFError, OSError):  # the latter where it has not read its job
                    process.join()
                    result = WorkerDied(process.exitcode)
                    if waiting:
                        start()
                else:
                    if waiting:
                        give(ready, process)
                    else:
                        ready.close()
                yield job, result
    finally:
        for process, _ in workers.values():
            process.terminate()
        for connection in workers:
            connection.close()


def attempt(function: Callable[[Any], Any], job: Any) -> Any:
    """The result or the exception."""
    try:
        return function(job)
    except Exception as error:
        return error


def serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """Do jobs until nobody is left who gives any."""
    while True:
        try:
            job = connection.recv()
            connection.send(attempt(function, job))
        except (EOFError, OSError, KeyboardInterrupt):  # the parent has ended
            return
