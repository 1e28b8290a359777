"""The socket between clients and replicas: answers, tokens, strangers; without Ray."""

import asyncio
import gc
import re

import numpy as np
import pytest
from pool_servers import DESCRIPTION, TABLE, TOKEN, ask, running_server

from pld_ray.pool import wire
from pld_ray.pool.client import PoolClient
from pld_ray.pool.connection import Connection, Lost
from pld_ray.pool.messages import ReplicaTable


def test_answers_find_their_requests_in_any_order():
    async def play():
        async with running_server() as server:
            connection = await Connection.open(server.endpoint, TOKEN)
            slow, dropped, fast, failing = (
                asyncio.create_task(ask(connection, value)) for value in (99, 99, 2, -1)
            )
            answer = await fast
            assert answer.prediction.chunks.tolist() == [[[4.0]]]
            assert (answer.outcome, answer.other_rows, answer.table) == ("answered", 4, TABLE)
            with pytest.raises(ValueError, match="below zero"):
                await failing
            dropped.cancel()
            await asyncio.wait_for(server.cancelled.wait(), 30)
            assert not slow.done()
            server.release.set()
            assert (await slow).prediction.chunks.tolist() == [[[198.0]]]
            connection.close()

    asyncio.run(play())


def test_many_requests_share_a_connection():
    async def play():
        async with running_server() as server:
            connection = await Connection.open(server.endpoint, TOKEN)
            rows = [np.arange(1000, dtype=np.float32) + 100 + i for i in range(400)]
            answers = await asyncio.gather(*(ask(connection, *values) for values in rows))
            for values, answer in zip(rows, answers, strict=True):
                np.testing.assert_array_equal(answer.prediction.chunks.ravel(), 2 * values)
            connection.close()

    asyncio.run(play())


def test_a_stranger_is_turned_away():
    async def play():
        async with running_server() as server:
            stranger = await Connection.open(server.endpoint, b"x" * 32)
            with pytest.raises(Lost):
                await asyncio.wait_for(ask(stranger, 1), 30)
            await server.serves_others()

    asyncio.run(play())


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (wire.PREFIX.pack(2, 0) + b"{]", "not a frame: JSONDecodeError"),
        (wire.PREFIX.pack(2, 1 << 32), "a frame of 2 [+] 4294967296 bytes; at most"),
        (wire.PREFIX.pack(len(DEEP), 0) + DEEP, "not a frame: RecursionError"),
        (wire.PREFIX.pack(14, 0) + b'{"arrays": []}', "'id'"),
        (wire.PREFIX.pack(23, 0) + b'{"arrays": [], "id": 1}', "'table_version'"),
    ],
)
def test_what_is_too_large_or_no_frame_is_answered_and_others_are_served(sent, why):
    async def play():
        async with running_server() as server:
            reader, writer = await asyncio.open_connection(*server.endpoint)
            writer.write(TOKEN + sent)
            header, _ = await asyncio.wait_for(wire.read_frame(reader), 30)
            assert header["id"] is None
            assert re.search(why, header["error"][1])
            assert await reader.read() == b""  # and that was all
            writer.close()
            await server.serves_others()

    asyncio.run(play())


def test_a_closed_connection_is_a_lost_request():
    async def play():
        async with running_server() as server:
            connection = await Connection.open(server.endpoint, TOKEN)
            waiting = asyncio.create_task(ask(connection, 99))
            await asyncio.sleep(0)
            connection.close()
            for lost in (waiting, ask(connection, 1)):
                with pytest.raises(Lost):
                    await lost

    asyncio.run(play())


def test_a_replica_that_cannot_be_reached_is_left_for_another():
    async def play():
        async with running_server() as server:
            endpoints = {"gone": ("127.0.0.1", 1), "there": server.endpoint}
            table = ReplicaTable((1, 0), dict.fromkeys(endpoints, 0.0), endpoints)
            client = PoolClient("no controller", table, DESCRIPTION, 60, 30, TOKEN, seed=0)
            for value in range(6):
                x = {"x": np.full((1, 1), value, dtype=np.float32)}
                pending = client.submit(x, [""], [0])
                answer = await asyncio.wrap_future(pending)
                assert answer.chunks.tolist() == [[[2.0 * value]]]

    asyncio.run(play())


def test_a_replica_that_cannot_be_reached_is_said():
    async def play():
        with pytest.raises(Lost, match=r"cannot be reached at 127.0.0.1:1 .*allow TCP connections"):
            await Connection.open(("127.0.0.1", 1), TOKEN)

    asyncio.run(play())


def test_a_request_outlives_its_client():
    async def play():
        async with running_server() as server:
            endpoints = {"there": server.endpoint}
            table = ReplicaTable((1, 0), {"there": 0.0}, endpoints)
            client = PoolClient("no controller", table, DESCRIPTION, 60, 30, TOKEN)
            pending = client.submit({"x": np.full((1, 1), 99, dtype=np.float32)}, [""], [0])
            del client
            gc.collect()
            await asyncio.sleep(0.1)
            server.release.set()
            assert (await asyncio.wrap_future(pending)).chunks.tolist() == [[[198.0]]]
            assert server.requests == 1  # it was not asked again

    asyncio.run(asyncio.wait_for(play(), 60))
