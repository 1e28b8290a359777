"""Frames, and the messages that travel in them."""

import numpy as np
import pytest

from pld_ray.policies import Prediction
from pld_ray.pool import wire
from pld_ray.pool.messages import Answer, ReplicaTable, Request


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


def test_requests_and_answers_travel_whole():
    leftovers = np.full((2, 3, 1), np.nan, dtype=np.float32)
    x = {"x": np.array([[1.0], [2.0]], dtype=np.float32)}
    request = Request(x, ["a", "b"], [0, 1], [5, 6], leftovers, 1.5, 2, 1, (7, 3))
    header, arrays = wire.decode(*split(request.encode(9)))
    assert header["id"] == 9
    received = Request.decode(header, arrays)
    np.testing.assert_array_equal(received.observations.pop("x"), x.pop("x"))
    np.testing.assert_array_equal(received.leftovers, leftovers)
    received.leftovers = request.leftovers = None
    assert received == request

    table = ReplicaTable((7, 1), {"a": 0.5}, {"a": ("127.0.0.1", 1)}, "note", False)
    for sent in (Answer("answered", Prediction(np.ones((1, 2, 3))), 4, table), Answer("draining")):
        answer = Answer.decode(*wire.decode(*split(sent.encode(9))))
        assert (answer.outcome, answer.other_rows, answer.table) == (
            sent.outcome,
            sent.other_rows,
            sent.table,
        )
        assert (answer.prediction is None) == (sent.prediction is None)
        if answer.prediction is not None:
            np.testing.assert_array_equal(answer.prediction.chunks, np.ones((1, 2, 3)))
            assert answer.prediction.features is answer.prediction.normalized is None
            assert answer.prediction.chunks.flags.writeable
