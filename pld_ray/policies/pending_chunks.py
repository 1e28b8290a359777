"""One request to the pool, from the first replica that is asked to the answer."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import numpy as np

from pld_ray.policies.leftovers import Leftovers
from pld_ray.policies.protocol import Prediction
from pld_ray.pool.replica import ANSWERED
from pld_ray.pool.replica_calls import Call, Lost, Refusal

if TYPE_CHECKING:
    from pld_ray.pool.client import PoolClient

RETRY_S = 0.2  # between two looks for a replica while there is none
TURN_S = 0.01  # that one of several replicas is listened to

Request = tuple[dict[str, np.ndarray], list[str], list[int], list[int] | None, Leftovers | None]
"""Observations, tasks, environments, seeds, leftovers."""


class PendingChunks:
    """One request on its way.

    Args:
        client: whose request it is.
        request: observations, tasks, environments, seeds, leftovers.
        deadline_s, late_after_s: see `PoolClient`.
    """

    def __init__(
        self, client: PoolClient, request: Request, deadline_s: float, late_after_s: float
    ) -> None:
        self._client = client
        self._request = request
        self._rows = len(request[1])
        self._deadline_s = deadline_s
        self._late_after_s = late_after_s
        self._deadline = time.monotonic() + deadline_s
        self._asked: dict[str, Call] = {}  # replica -> request not yet answered
        self._tried: list[str] = []
        self._failures: list[str] = []
        self._attempts = 0
        self._refusal: BaseException | None = None
        self._output: Prediction | None = None
        self._send()

    def result(self) -> Prediction:
        """The answer; waits for it.

        Raises:
            ValueError, TimeoutError, ConnectionError: as `PoolClient.infer`.
            Exception: what the policy raised, if every replica failed on the request.
        """
        while self._output is None:
            if not self._asked:
                self._find_another()
            elif not self._collect(min(self._late_after_s, self._left())):
                if self._left() <= 0:
                    self._give_up()
                if not self._send():
                    with contextlib.suppress(ConnectionError):  # who was asked may answer yet
                        self._client.look_for_replicas(self._left())
        return self._output

    def cancel(self) -> None:
        """Nobody will ask for the result: replicas that have not begun need not compute it."""
        for name, call in self._asked.items():
            self._client.release(name, self._rows)
            call.cancel()
        self._asked.clear()

    def _send(self) -> bool:
        """Ask a replica that was not asked in this round, if there is one."""
        name = self._client.choose(self._tried, self._rows)
        if name is None:
            return False
        self._tried.append(name)
        self._attempts += 1
        expires_in_s = max(self._left(), 0.0)
        try:
            call = self._client.send(name, self._request, self._attempts - 1, expires_in_s)
        except Lost as error:
            self._lost(name, error)
        else:
            self._asked[name] = call
        return True

    def _collect(self, timeout_s: float) -> bool:
        """Take in one answer or failure; False if none came within `timeout_s`."""
        end = time.monotonic() + timeout_s
        while True:
            left = max(0.0, end - time.monotonic())
            for name, call in list(self._asked.items()):
                # of several, each is looked at in turn
                if self._take(name, call, left if len(self._asked) == 1 else min(left, TURN_S)):
                    return True
            if not left:
                return False

    def _take(self, name: str, call: Call, timeout_s: float) -> bool:
        try:
            answer = call.wait(timeout_s)
        except Lost as error:
            del self._asked[name]
            self._lost(name, error)
            return True
        except Refusal as refusal:
            del self._asked[name]
            self._refused(name, refusal)
            return True
        if answer is None:
            return False
        del self._asked[name]
        self._client.settle(name, self._rows, answer)
        if answer.outcome == ANSWERED:
            assert answer.chunks is not None
            # arrays from the object store or a socket's buffer are read-only
            optional = (answer.features, answer.normalized)
            features, normalized = (None if part is None else np.array(part) for part in optional)
            self._output = Prediction(np.array(answer.chunks), features, normalized)
            self._drop_late()  # the answer that came first counts
        else:
            self._failures.append(f"{name}: {answer.outcome}")
        return True

    def _drop_late(self) -> None:
        for name in self._asked:
            self._client.suspect(name)
        self.cancel()

    def _lost(self, name: str, error: Lost) -> None:
        self._client.release(name, self._rows)
        self._client.suspect(name)
        self._client.forget(name)
        self._failures.append(f"{name}: lost ({error})")

    def _refused(self, name: str, refusal: Refusal) -> None:
        cause = refusal.__cause__ or refusal
        self._client.release(name, self._rows)
        if isinstance(cause, ValueError | TypeError):
            self.cancel()
            raise cause  # the request is wrong; another replica would refuse it too
        self._refusal = cause
        self._failures.append(f"{name}: {type(cause).__name__}")

    def _find_another(self) -> None:
        """Ask one that was not asked, or wait a moment and begin again with all of them."""
        if self._left() <= 0:
            self._give_up()
        if self._send():
            return
        self._client.look_for_replicas(self._left())
        if self._send():
            return
        if self._refusal is not None:
            raise self._refusal
        time.sleep(max(0.0, min(RETRY_S, self._left())))
        self._tried.clear()

    def _give_up(self) -> None:
        note = ""
        with contextlib.suppress(ConnectionError):
            note = self._client.look_for_replicas(RETRY_S).note
        self._client.missed_deadline()
        late = [f"{name}: no answer" for name in self._asked]
        self._drop_late()
        reasons = "; ".join([*self._failures, *late, *([note] if note else [])])
        raise TimeoutError(
            f"no base-policy replica answered {self._rows} rows within deadline_s="
            f"{self._deadline_s:g} ({reasons or 'none is ready'}): raise the deadline, or give the "
            "pool more replicas"
        )

    def _left(self) -> float:
        return self._deadline - time.monotonic()
