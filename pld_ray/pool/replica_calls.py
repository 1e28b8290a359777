"""One request to one replica, by socket or as an actor call."""

from __future__ import annotations

import builtins
import contextlib
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from pld_ray.policies.leftovers import Leftovers, packed
from pld_ray.pool import wire
from pld_ray.pool.replica import Answer
from pld_ray.pool.replica_server import from_json

CONNECT_TIMEOUT_S = 2.0
SEND_TIMEOUT_S = 30.0  # a replica that takes in nothing for so long is lost
CHUNK = 1 << 18

Message = tuple[
    dict[str, np.ndarray],
    list[str],
    list[int],
    Sequence[int] | None,
    Leftovers | None,
    tuple[Any, ...],
]
"""Observations, tasks, environments, seeds, leftovers, `Ticket`."""


class Lost(Exception):
    """The replica, or the way to it, has gone; the request may have been answered or not."""


class Refusal(Exception):
    """The policy raised; `__cause__` is what it raised."""


class Call(Protocol):
    """A request on its way to one replica."""

    def wait(self, timeout_s: float) -> Answer | None:
        """The answer, or None if there is none within `timeout_s`.

        Raises:
            Lost: there will be none.
            Refusal: the policy raised.
        """

    def cancel(self) -> None:
        """The answer is not wanted any more."""


class ActorCall:
    """A call of the replica's actor method, wherever Ray finds it."""

    def __init__(self, handle: Any, message: Message) -> None:
        try:
            self._reference = handle.infer.remote(message)
        except RayError as error:
            raise Lost(type(error).__name__) from error

    def wait(self, timeout_s: float) -> Answer | None:
        try:
            return Answer(*ray.get(self._reference, timeout=timeout_s))
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise Refusal from cause
        except GetTimeoutError:
            return None
        except RayError as error:
            raise Lost(type(error).__name__) from error

    def cancel(self) -> None:
        with contextlib.suppress(RayError):
            ray.cancel(self._reference)


class Connection:
    """A socket to one replica, for any number of requests and threads at a time.

    There is no reading thread: of the callers who wait, one reads for all of them.

    Args:
        endpoint: host and port.
        token: the pool's.

    Raises:
        OSError, Lost: nobody answers there.
    """

    def __init__(self, endpoint: tuple[str, int], token: bytes) -> None:
        self._socket = socket.create_connection(endpoint, timeout=CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self._state = threading.Condition()
        self._reading = False
        self._error: Exception | None = None
        self._last = 0
        self._answers: dict[int, wire.Frame | None] = {}  # None: not in yet
        self._send(token)

    def ask(self, message: Message) -> SocketCall:
        """Send a request.

        Raises:
            Lost: the connection is broken.
        """
        observations, tasks, env_ids, seeds, leftovers, ticket = message
        lengths, actions = packed(leftovers)
        with self._state:
            self._last += 1
            number = self._last
            self._answers[number] = None
        header = {
            "id": number,
            "tasks": tasks,
            "env_ids": env_ids,
            "seeds": seeds,
            "leftovers": lengths,
            "ticket": ticket,
        }
        self._send(wire.encode(header, {**observations, **actions}))
        return SocketCall(self, number)

    def wait(self, number: int, timeout_s: float) -> wire.Frame | None:
        """The answer to request `number`, or None if it is not in within `timeout_s`."""
        end = time.monotonic() + timeout_s
        while True:
            with self._state:
                if self._answers[number] is not None:
                    return self._answers.pop(number)
                if self._error is not None:
                    raise Lost(str(self._error)) from self._error
                left = end - time.monotonic()
                if left <= 0:
                    return None
                if self._reading:
                    self._state.wait(left)
                    continue
                self._reading = True
            self._read(left)

    def cancel(self, number: int) -> None:
        with self._state:
            self._answers.pop(number, None)
        with contextlib.suppress(Lost):
            self._send(wire.encode({"id": number, "cancel": True}, {}))

    def close(self) -> None:
        self._fail(ConnectionError("closed"))

    def _read(self, timeout_s: float) -> None:
        """Take in one frame or wait in vain; then let another caller read."""
        frame, error = None, None
        try:
            frame = self._next_frame(timeout_s)
            if frame is not None and frame[0].get("id") is None:  # what we sent was no frame
                raise ConnectionError(f"the replica refuses: {frame[0].get('error')}")
        except (OSError, ValueError) as problem:  # ValueError: another thread closed it
            error = problem
        with self._state:
            self._reading = False
            if frame is not None and frame[0].get("id") in self._answers:
                self._answers[frame[0]["id"]] = frame
            self._state.notify_all()
        if error is not None:
            self._fail(error)

    def _next_frame(self, timeout_s: float) -> wire.Frame | None:
        end = time.monotonic() + timeout_s
        while (frame := self._cut()) is None:
            try:
                data = self._socket.recv(CHUNK)
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0 or not poll(self._socket, select.POLLIN, left):
                    return None
                continue
            if not data:
                raise ConnectionError("the replica closed the connection")
            self._buffer += data
        return frame

    def _cut(self) -> wire.Frame | None:
        """The first whole frame of the buffer."""
        start = wire.PREFIX.size
        if len(self._buffer) < start:
            return None
        header, body = wire.lengths(bytes(self._buffer[:start]))
        middle, end = start + header, start + header + body
        if len(self._buffer) < end:
            return None
        content = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return wire.decode(content[: middle - start], content[middle - start :])

    def _send(self, data: bytes) -> None:
        end = time.monotonic() + SEND_TIMEOUT_S
        view = memoryview(data)
        with self._sending:
            try:
                while view:
                    try:
                        view = view[self._socket.send(view) :]
                    except BlockingIOError:
                        left = end - time.monotonic()
                        if left <= 0 or not poll(self._socket, select.POLLOUT, left):
                            raise ConnectionError("the replica takes in nothing") from None
            except OSError as error:
                self._fail(error)
                raise Lost(str(error)) from error

    def _fail(self, error: Exception) -> None:
        with self._state:
            self._error = self._error or error
            self._state.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class SocketCall:
    """A request over a `Connection`."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection, self._number = connection, number

    def wait(self, timeout_s: float) -> Answer | None:
        frame = self._connection.wait(self._number, timeout_s)
        if frame is None:
            return None
        header, arrays = frame
        if "error" in header:
            raise Refusal from rebuilt(*header["error"])
        return Answer(
            header["outcome"],
            arrays.get("chunks"),
            arrays.get("features"),
            arrays.get("normalized"),
            header["other_rows"],
            from_json(header["table"]),
        )

    def cancel(self) -> None:
        self._connection.cancel(self._number)


def rebuilt(name: str, message: str) -> Exception:
    """An exception as the replica raised it, if it is one of Python's own."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):
            return kind(message)
    return RuntimeError(f"{name}: {message}")


def poll(sock: socket.socket, event: int, timeout_s: float) -> bool:
    """Something can be read or sent before `timeout_s` is over."""
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(max(1.0, 1000.0 * timeout_s)))
