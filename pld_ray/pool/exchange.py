"""The replicas of a pool as one client sees them: whom to ask, and the way there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from pld_ray.pool.connection import Connection, Lost
from pld_ray.pool.messages import Answer, ReplicaTable, Request
from pld_ray.pool.routing import Router

NAMESPACE = "pld_ray"
"""Ray namespace of the actors' names, so that clients of any job and node find them."""

LONGEST_LOOK_S = 5.0  # that the controller's table is waited for


class Exchange:
    """Asks single replicas, and the controller for new ones; all within one event loop.

    Args:
        controller: name of the pool's controller actor.
        table: the replicas.
        token: what replicas' sockets ask for.
        seed: of the draws in routing.

    Attributes:
        missed_deadlines: of the client, which its next request tells.
    """

    def __init__(
        self, controller: str, table: ReplicaTable, token: bytes, seed: int | None
    ) -> None:
        self._controller = controller
        self._token = token
        self.router = Router(table, np.random.default_rng(seed))
        self.connections: dict[str, asyncio.Task[Connection]] = {}
        self.missed_deadlines = 0

    async def ask(self, name: str, request: Request) -> Answer:
        """One replica's answer, and what it tells about the pool.

        Raises:
            Lost: it has gone, or cannot be reached.
            Exception: what the policy raised.
        """
        if name not in self.connections:
            endpoint = self.router.table.endpoints.get(name)
            if endpoint is None:
                raise Lost("it was removed")
            opening = Connection.open(endpoint, self._token)
            self.connections[name] = asyncio.create_task(opening)
        opened = self.connections[name]
        try:
            connection = await asyncio.shield(opened)
            answer = await connection.ask(request)
        except Lost:
            if self.connections.get(name) is opened:
                del self.connections[name]
            raise
        self.router.answered(name, answer.other_rows)
        self.router.update(answer.table)
        return answer

    async def look_for_replicas(self, timeout_s: float) -> ReplicaTable:
        """The controller's table.

        Raises:
            ConnectionError: there is no such pool any more, or it takes no requests.
        """
        try:
            find = functools.partial(ray.get_actor, self._controller, namespace=NAMESPACE)
            controller: Any = await asyncio.to_thread(find)
        except ValueError:
            raise ConnectionError(
                "no base-policy replica answered: the pool was stopped, or the driver that made it "
                "has ended"
            ) from None
        with contextlib.suppress(RayError, TimeoutError):  # it is being restarted, or is slow
            asked = asyncio.wrap_future(controller.table.remote().future())
            self.router.update(await asyncio.wait_for(asked, min(timeout_s, LONGEST_LOOK_S)))
        if not self.router.table.accepting:
            raise ConnectionError(f"no base-policy replica answered: {self.router.table.note}")
        return self.router.table


def close_all(connections: dict[str, asyncio.Task[Connection]]) -> None:
    """Close what a client that is not used any more has open."""
    for opened in connections.values():
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            opened.result().close()
        else:
            opened.cancel()
