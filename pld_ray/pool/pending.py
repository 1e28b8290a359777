"""One request to the pool, from the first replica that is asked to the answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

from pld_ray.policies import Prediction
from pld_ray.pool.connection import Lost
from pld_ray.pool.exchange import Exchange
from pld_ray.pool.messages import Answer, Request

RETRY_S = 0.2  # between two looks for a replica while there is none


class PendingRequest:
    """Asks replicas until one answers or the deadline is over.

    Args:
        exchange: the client's.
        request: what is asked.
        deadline_s, late_after_s: see `PoolClient`.
    """

    def __init__(
        self, exchange: Exchange, request: Request, deadline_s: float, late_after_s: float
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._deadline_s, self._late_after_s = deadline_s, late_after_s
        self._deadline = time.monotonic() + deadline_s
        self._asked: dict[asyncio.Task[Answer], str] = {}  # not answered yet, by which replica
        self._tried: list[str] = []
        self._attempts = 0
        self._failures: dict[str, str] = {}
        self._error: Exception | None = None  # the policy's

    async def run(self) -> Prediction:
        """The answer that comes first; who is late is asked no more for a while.

        Raises:
            ValueError, TimeoutError, ConnectionError, Exception: as `PoolClient.infer`.
        """
        try:
            while (left := self._left()) > 0:
                if not self._asked and not self._ask_another():
                    await self._find_another()
                    continue
                limit = min(left, self._late_after_s)
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait(self._asked, timeout=limit, return_when=first)
                for task in done:
                    if (prediction := self._take(task)) is not None:
                        for name in self._asked.values():
                            self._exchange.router.suspect(name)
                        return prediction
                if not done and self._left() > 0 and not self._ask_another():
                    with contextlib.suppress(ConnectionError):  # who was asked may answer yet
                        await self._exchange.look_for_replicas(self._left())
            raise await self._missed()
        finally:
            for task in self._asked:
                task.cancel()  # a replica that has not begun need not compute it

    def _ask_another(self) -> bool:
        """Ask a replica that was not asked in this round, if there is one."""
        router = self._exchange.router
        name = router.choose(self._tried)
        if name is None:
            return False
        request = dataclasses.replace(
            self._request,
            expires_in_s=max(self._left(), 0.0),
            attempt=self._attempts,
            missed_deadlines=self._exchange.missed_deadlines,
            table_version=router.table.version,
        )
        self._exchange.missed_deadlines = 0
        self._tried.append(name)
        self._attempts += 1
        task = asyncio.create_task(self._exchange.ask(name, request))
        self._asked[task] = name
        router.sent(name, request.rows)
        task.add_done_callback(lambda _: router.released(name, request.rows))
        return True

    def _take(self, task: asyncio.Task[Answer]) -> Prediction | None:
        """The prediction, if a replica that was asked gave one."""
        name = self._asked.pop(task)
        try:
            answer = task.result()
        except Lost as error:
            self._exchange.router.suspect(name)
            self._failures[name] = f"lost ({error})"
        except (ValueError, TypeError):
            raise  # the request is wrong; another replica would refuse it too
        except Exception as error:
            self._error = error
            self._failures[name] = type(error).__name__
        else:
            if answer.prediction is not None:
                return answer.prediction
            self._failures[name] = answer.outcome
        return None

    async def _find_another(self) -> None:
        """Ask a new replica, or wait a moment and begin again with all of them."""
        await self._exchange.look_for_replicas(self._left())
        if self._ask_another():
            return
        if self._error is not None:
            raise self._error
        await asyncio.sleep(max(0.0, min(RETRY_S, self._left())))
        self._tried.clear()

    async def _missed(self) -> TimeoutError:
        """The error of a request whose time is over."""
        with contextlib.suppress(ConnectionError):
            await self._exchange.look_for_replicas(RETRY_S)
        self._exchange.missed_deadlines += 1
        for name in self._asked.values():
            self._exchange.router.suspect(name)
            self._failures[name] = "no answer"
        reasons = [f"{name}: {reason}" for name, reason in self._failures.items()]
        if note := self._exchange.router.table.note:
            reasons.append(note)
        return TimeoutError(
            f"no base-policy replica answered {self._request.rows} rows within deadline_s="
            f"{self._deadline_s:g} ({'; '.join(reasons) or 'none is ready'}): raise the "
            "deadline, or give the pool more replicas"
        )

    def _left(self) -> float:
        return self._deadline - time.monotonic()
