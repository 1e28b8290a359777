"""A replica's server with a handler made by arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np

from pld_ray.policies import PolicyDescription, Prediction
from pld_ray.pool.connection import Connection
from pld_ray.pool.messages import Answer, ReplicaTable, Request
from pld_ray.pool.server import ReplicaServer

TOKEN = b"t" * 32
TABLE = ReplicaTable((0, 1), {"a": 0.5}, {"a": ("127.0.0.1", 1)}, "note", False)
DESCRIPTION = PolicyDescription(1, 1, {"x": (1,)}, "doubling", 1)


class Doubling:
    """Doubles x; x below zero fails, x of 99 waits to be released."""

    def __init__(self) -> None:
        self.release, self.cancelled = asyncio.Event(), asyncio.Event()
        self.endpoint = ("", 0)
        self.requests = 0

    async def answer(self, request: Request) -> Answer:
        self.requests += 1
        x = request.observations["x"]
        if x[0] < 0:
            raise ValueError("below zero")
        if x[0] == 99:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return Answer("answered", Prediction(2 * x[:, None]), 4, TABLE)

    async def serves_others(self) -> None:
        connection = await Connection.open(self.endpoint, TOKEN)
        assert (await ask(connection, 1)).prediction.chunks.tolist() == [[[2.0]]]
        connection.close()


@contextlib.asynccontextmanager
async def running_server() -> AsyncIterator[Doubling]:
    doubling = Doubling()
    server = ReplicaServer(doubling.answer, TOKEN)
    doubling.endpoint = await server.listen("127.0.0.1")
    try:
        yield doubling
    finally:
        await server.close()


async def ask(connection: Connection, *values: float) -> Answer:
    x = np.array(values, dtype=np.float32)[:, None]
    return await connection.ask(Request({"x": x}, [""] * len(values), [0] * len(values)))
