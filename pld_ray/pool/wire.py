"""Frames between pool clients and replicas: a JSON header and raw arrays, nothing executable."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

PREFIX = struct.Struct("!IQ")  # bytes of the header, bytes of all arrays
MAX_HEADER = 1 << 22
MAX_BODY = 1 << 28
"""Bytes: some three hundred observations with two cameras of 384 x 384."""
KINDS = "biuf"  # booleans, integers, floats

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, SyntaxError)
"""What JSON and numpy make of bytes that are no frame."""

Frame = tuple[dict[str, Any], dict[str, np.ndarray]]


class BadFrame(ConnectionError):
    """What came is not a frame: the connection is of no use any more."""


def encode(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """One frame.

    Args:
        header: anything that JSON can hold.
        arrays: name -> array of numbers.

    Raises:
        ValueError: it is larger than a replica accepts.
    """
    parts = [np.asarray(array, order="C") for array in arrays.values()]
    layout = [[name, part.dtype.str, part.shape] for name, part in zip(arrays, parts, strict=True)]
    text = json.dumps({**header, "arrays": layout}).encode()
    body = sum(part.nbytes for part in parts)
    if len(text) > MAX_HEADER or body > MAX_BODY:
        raise ValueError(
            f"a message of {body / 1e6:,.0f} MB to or from the base-policy pool; it may have "
            f"{MAX_BODY / 1e6:,.0f} MB: lower runners.num_envs_per_env_runner or env.image_size"
        )
    return b"".join([PREFIX.pack(len(text), body), text, *(part.tobytes() for part in parts)])


def lengths(prefix: bytes) -> tuple[int, int]:
    """Bytes of header and arrays that follow a frame's first `PREFIX.size` bytes.

    Raises:
        BadFrame: they are too many for a frame.
    """
    header, body = PREFIX.unpack(prefix)
    if header > MAX_HEADER or body > MAX_BODY:
        raise BadFrame(
            f"a frame of {header} + {body} bytes; at most {MAX_HEADER} + {MAX_BODY} are accepted"
        )
    return header, body


def decode(header: bytes | memoryview, body: bytes | memoryview) -> Frame:
    """The header and the arrays, which are views of `body`.

    Raises:
        BadFrame: the two do not fit each other.
    """
    try:
        content = json.loads(bytes(header))
        if not isinstance(content, dict):
            raise TypeError("the header is no JSON object")
        arrays, start = {}, 0
        for name, dtype, shape in content.pop("arrays"):
            kind = np.dtype(dtype)
            if kind.kind not in KINDS or any(size < 0 for size in shape):
                raise ValueError(f"an array of {dtype}, {shape}")
            arrays[name] = np.frombuffer(body, kind, math.prod(shape), start).reshape(shape)
            start += arrays[name].nbytes
    except (*MALFORMED, RecursionError) as error:
        raise BadFrame(f"not a frame: {type(error).__name__}: {error}") from None
    if start != len(body):
        raise BadFrame(f"{len(body)} bytes of arrays, {start} announced")
    return content, arrays


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        BadFrame: what comes is none.
        EOFError, OSError: nothing comes any more.
    """
    header, body = lengths(await reader.readexactly(PREFIX.size))
    return decode(await reader.readexactly(header), await reader.readexactly(body))
