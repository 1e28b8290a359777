"""Checkpoints that are written while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pld_ray.errors import UserError
from pld_ray.runs.run_dir import RunError
from pld_ray.sharded.ranks import Ranks


class CheckpointWriter:
    """A thread of the first rank that writes one checkpoint at a time.

    Leaving its `with` waits for the write under way, so that nothing is written into a run that
    another process may take over.

    Args:
        ranks: this process among those that train together. All call `settle` in the same order.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def begin(self, write: Callable[[], None]) -> None:
        """Call `write` in the thread; what was begun before must be settled."""
        assert self._under_way is None
        self._under_way = self._thread.submit(write)

    def settle(self) -> None:
        """Wait until what was begun is written.

        Raises:
            RunError: it could not be written; on every rank.
        """
        begun, self._under_way = self._under_way, None
        error = None if begun is None else begun.exception()
        if error is not None and not isinstance(error, UserError):
            error = RunError(f"a checkpoint cannot be written: {type(error).__name__}: {error}")
        if shared := self.ranks.share(error):
            raise shared
