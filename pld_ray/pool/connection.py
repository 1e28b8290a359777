"""A client's end of the socket to one replica."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from typing import Any

from pld_ray.pool import wire
from pld_ray.pool.messages import Answer, Endpoint, Request

CONNECT_TIMEOUT_S = 2.0


class Lost(Exception):
    """The replica, or the way to it, has gone; the request may have been answered or not."""


class Connection:
    """Carries any number of requests at a time, within one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._last = 0
        self._answers: dict[int, asyncio.Future[wire.Frame]] = {}
        self._error: Exception | None = None
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, endpoint: Endpoint, token: bytes) -> Connection:
        """Connect and show the token.

        Raises:
            Lost: nobody listens there, or nothing gets there from here.
        """
        host, port = endpoint
        try:
            opening = asyncio.open_connection(host, port)
            reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except OSError as error:  # TimeoutError too
            raise Lost(
                f"cannot be reached at {host}:{port} ({error or 'no answer'}): if this lasts, "
                "allow TCP connections between the nodes of runners and replicas"
            ) from error
        writer.write(token)
        return cls(reader, writer)

    async def ask(self, request: Request) -> Answer:
        """The replica's answer; cancelling this cancels the request there too.

        Raises:
            Lost: the connection is broken.
            Exception: what the policy raised; one of Python's own kinds, else RuntimeError.
        """
        if self._error is not None:
            raise Lost(str(self._error))
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._writer.write(request.encode(number))
            header, arrays = await answer
        except asyncio.CancelledError:
            if self._error is None:
                self._writer.write(wire.encode({"id": number, "cancel": True}, {}))
            raise
        finally:
            del self._answers[number]
        if "error" in header:
            raise rebuilt(*header["error"])
        return Answer.decode(header, arrays)

    def close(self) -> None:
        self._fail(ConnectionError("closed"))
        self._reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out answers until the connection ends."""
        try:
            while True:
                frame = await wire.read_frame(reader)
                number = frame[0].get("id")
                if number is None:  # what we sent was no frame
                    raise ConnectionError(f"the replica refuses: {frame[0].get('error')}")
                if number in self._answers and not self._answers[number].done():
                    self._answers[number].set_result(frame)
        except (OSError, EOFError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Lost(str(error) or "the replica closed the connection"))
        with contextlib.suppress(OSError):
            self._writer.close()


def rebuilt(name: str, message: str) -> Exception:
    """An exception as the replica raised it, if it is one of Python's own."""
    kind: Any = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):
            return kind(message)
    return RuntimeError(f"{name}: {message}")
