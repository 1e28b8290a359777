"""The socket between clients and replicas: frames, tokens, strangers."""

import asyncio
import re
import socket
import threading

import numpy as np
import pytest

from pld_ray.pool import wire
from pld_ray.pool.replica import ANSWERED
from pld_ray.pool.replica_calls import Connection, Lost, Refusal
from pld_ray.pool.replica_server import ReplicaServer, as_json, from_json
from pld_ray.pool.routing import ReplicaTable

TOKEN = b"t" * 32
TABLE = ReplicaTable((7, 1), {"a": 0.5}, {"a": ("127.0.0.1", 1)}, "note", False)


def split(frame):
    """Header and body of an encoded frame."""
    header, body = wire.lengths(frame[: wire.PREFIX.size])
    assert len(frame) == wire.PREFIX.size + header + body
    return frame[wire.PREFIX.size :][:header], frame[len(frame) - body :]


def test_arrays_arrive_as_they_were_sent():
    arrays = {
        "image": np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)[:, ::-1],
        "state": np.array([[np.nan, -0.0, np.inf]], dtype=np.float32),
        "nothing": np.zeros((0, 3), dtype=np.int64),
        "flag": np.array(True),
    }
    header, received = wire.decode(*split(wire.encode({"id": 3, "tasks": ["grün"]}, arrays)))
    assert header == {"id": 3, "tasks": ["grün"]}
    assert list(received) == list(arrays)
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert received[name].shape == array.shape
        assert received[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"{", b""),
        (b"[]", b""),
        (b"{}", b""),
        (b'{"arrays": [["x", "O", [1]]]}', b"12345678"),
        (b'{"arrays": [["x", "<f4", [2]]]}', b"1234"),
        (b'{"arrays": [["x", "<f4", [1]]]}', b"12345678"),
        (b'{"arrays": [["x", "<f4", [-1]]]}', b"1234"),
        (b'{"arrays": [["x", "nonsense", [1]]]}', b"1234"),
        (b'{"arrays": [["x", "<f4", [1e400]]]}', b"1234"),
        (b'{"arrays": [["x", "<f4", [9223372036854775807, 9]]]}', b"1234"),
        (b"[" * 100_000, b""),
        (b'{"arrays": [], "x": ' + b'{"x":' * 100_000, b""),
    ],
)
def test_what_is_no_frame_is_refused(header, body):
    with pytest.raises(wire.BadFrame):
        wire.decode(header, body)


@pytest.mark.parametrize("sizes", [(1 << 25, 0), (2, (1 << 28) + 1), (2, 1 << 32)])
def test_lengths_are_bounded(sizes):
    with pytest.raises(wire.BadFrame, match=r"a frame of .* at most 4194304 \+ 268435456"):
        wire.lengths(wire.PREFIX.pack(*sizes))


def test_what_a_replica_would_refuse_is_not_sent():
    large = np.broadcast_to(np.uint8(0), ((1 << 28) + 1,))
    with pytest.raises(ValueError, match=r"268 MB: lower runners\.num_envs_per_env_runner"):
        wire.encode({"id": 1}, {"image": large})


def test_tables_travel_as_json():
    assert from_json(as_json(TABLE)) == TABLE
    assert from_json(as_json(None)) is None


@pytest.fixture
def server():
    """A server that doubles x; x below zero fails, x of 99 waits for the event."""
    release = asyncio.Event()
    cancelled = threading.Event()

    async def handler(message):
        x = message[0]["x"]
        if x[0] < 0:
            raise ValueError("below zero")
        if x[0] == 99:
            try:
                await release.wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return (ANSWERED, 2 * x, None, None, 4, TABLE)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ReplicaServer(handler, TOKEN)
    port = asyncio.run_coroutine_threadsafe(server.listen("127.0.0.1"), loop).result(30)
    server.port, server.cancelled = port, cancelled
    server.release = lambda: loop.call_soon_threadsafe(release.set)
    yield server
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def ask(connection, *values):
    x = np.array(values, dtype=np.float32)
    return connection.ask(({"x": x}, ["task"], [0], None, None, ("caller", 1.0, 0, 0, (0, 0))))


def test_answers_find_their_requests_in_any_order(server):
    connection = Connection(("127.0.0.1", server.port), TOKEN)
    slow, dropped, fast, failing = (ask(connection, value) for value in (99, 99, 2, -1))
    answer = fast.wait(30)
    assert answer.chunks.tolist() == [4.0]
    assert (answer.outcome, answer.other_rows, answer.table) == (ANSWERED, 4, TABLE)
    with pytest.raises(Refusal) as refusal:
        failing.wait(30)
    assert repr(refusal.value.__cause__) == "ValueError('below zero')"
    dropped.cancel()
    assert server.cancelled.wait(30)
    assert slow.wait(0.01) is None
    server.release()
    assert slow.wait(30).chunks.tolist() == [198.0]
    connection.close()


def test_many_threads_share_a_connection(server):
    connection = Connection(("127.0.0.1", server.port), TOKEN)
    wrong = []

    def repeat(thread):
        for i in range(50):
            values = np.arange(1000, dtype=np.float32) + 100 + thread + i
            answer = ask(connection, *values).wait(30)
            if answer is None or not np.array_equal(answer.chunks, 2 * values):
                wrong.append((thread, i))

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    connection.close()


def test_a_stranger_is_turned_away(server):
    stranger = Connection(("127.0.0.1", server.port), b"x" * 32)
    with pytest.raises(Lost):  # on sending or on waiting, as the close is noticed
        ask(stranger, 1).wait(30)
    assert ask(Connection(("127.0.0.1", server.port), TOKEN), 1).wait(30).chunks.tolist() == [2.0]


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (wire.PREFIX.pack(2, 0) + b"{]", "not a frame: JSONDecodeError"),
        (wire.PREFIX.pack(2, 1 << 32), "a frame of 2 [+] 4294967296 bytes; at most"),
        (wire.PREFIX.pack(len(DEEP), 0) + DEEP, "not a frame: RecursionError"),
        (wire.PREFIX.pack(14, 0) + b'{"arrays": []}', "'id'"),
    ],
)
def test_what_is_too_large_or_no_frame_is_answered_and_others_are_served(server, sent, why):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as chatter:
        chatter.sendall(TOKEN + sent)
        told = b"".join(iter(lambda: chatter.recv(4096), b""))
    header, _ = wire.decode(*split(told))
    assert header["id"] is None
    assert re.search(why, header["error"][1])
    assert ask(Connection(("127.0.0.1", server.port), TOKEN), 1).wait(30).chunks.tolist() == [2.0]


def test_a_closed_connection_is_a_lost_request(server):
    connection = Connection(("127.0.0.1", server.port), TOKEN)
    call = ask(connection, 99)
    connection.close()
    with pytest.raises(Lost):
        call.wait(30)
    with pytest.raises(Lost):
        ask(connection, 1)
