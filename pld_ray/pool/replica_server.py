"""A replica's own socket: what an actor call does, at a tenth of the cost.

An actor call costs half a millisecond of the replica's core. Thirty-two callers in lock step make
that 16 ms between two batches; over a socket it is one or two.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from pld_ray.policies.leftovers import unpacked
from pld_ray.pool import wire
from pld_ray.pool.routing import ReplicaTable

GREETING_TIMEOUT_S = 10.0

Handler = Callable[[tuple[Any, ...]], Awaitable[tuple[Any, ...]]]


class ReplicaServer:
    """Answers frames by calling `handler` with the message of `Replica.infer`.

    A connection begins with the pool's token; anything else ends it. A frame that is too large or
    no frame is answered with an error, and ends it too. Requests of a connection that ends are
    cancelled.

    Args:
        handler: `Replica.infer`.
        token: bytes that only the pool and its clients know.
    """

    def __init__(self, handler: Handler, token: bytes) -> None:
        self._handler = handler
        self._token = token
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, host: str) -> int:
        """Accept connections at `host`; the port."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no more connections and end those there are."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: dict[int, asyncio.Task[None]] = {}
        own = asyncio.current_task()
        assert own is not None
        self._connections.add(own)
        try:
            token = await asyncio.wait_for(reader.readexactly(len(self._token)), GREETING_TIMEOUT_S)
            if not hmac.compare_digest(token, self._token):
                return
            while True:
                try:
                    header, arrays = await read_frame(reader)
                    number = int(header["id"])
                except (wire.BadFrame, *wire.MALFORMED) as error:
                    reply = {"id": None, "error": [type(error).__name__, str(error)]}
                    writer.write(wire.encode(reply, {}))
                    await writer.drain()
                    return
                if header.get("cancel"):
                    if number in tasks:
                        tasks[number].cancel()
                    continue
                task = asyncio.create_task(self._answer(writer, header, arrays))
                tasks[number] = task
                task.add_done_callback(functools.partial(forget, tasks, number))
        except (OSError, TimeoutError, EOFError, KeyError, TypeError, ValueError):
            pass  # the client has gone, or is none
        finally:
            self._connections.discard(own)
            for task in list(tasks.values()):
                task.cancel()
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, header: dict[str, Any], arrays: dict[str, Any]
    ) -> None:
        reply: dict[str, Any] = {"id": header["id"]}
        outputs: dict[str, Any] = {}
        try:
            leftovers = unpacked(header["leftovers"], arrays)
            asked = (header[name] for name in ("tasks", "env_ids", "seeds"))
            message = (arrays, *asked, leftovers, header["ticket"])
            outcome, chunks, features, normalized, other_rows, table = await self._handler(message)
        except Exception as error:  # the client raises it
            reply["error"] = [type(error).__name__, str(error)]
        else:
            reply |= {"outcome": outcome, "other_rows": other_rows, "table": as_json(table)}
            named = {"chunks": chunks, "features": features, "normalized": normalized}
            outputs = {name: array for name, array in named.items() if array is not None}
        writer.write(wire.encode(reply, outputs))


def forget(tasks: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    tasks.pop(number, None)


async def read_frame(reader: asyncio.StreamReader) -> wire.Frame:
    header, body = wire.lengths(await reader.readexactly(wire.PREFIX.size))
    return wire.decode(await reader.readexactly(header), await reader.readexactly(body))


def as_json(table: ReplicaTable | None) -> list[Any] | None:
    if table is None:
        return None
    return [table.version, table.depths, table.endpoints, table.note, table.accepting]


def from_json(content: list[Any] | None) -> ReplicaTable | None:
    if content is None:
        return None
    (epoch, number), depths, endpoints, note, accepting = content
    places = {name: (str(host), int(port)) for name, (host, port) in endpoints.items()}
    return ReplicaTable((epoch, number), depths, places, note, accepting)
