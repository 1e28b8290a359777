"""Where a Ray cluster is to be, and whether anything listens there before Ray asks for it."""

from __future__ import annotations

import os
import socket

from ray._common.network_utils import parse_address
from ray._private import services

from pld_ray.config import ConfigError

ANSWER_S = 10.0
"""That a port has to answer."""
SPEAK_S = 2.0
"""That what answers has to say what it speaks; a busy cluster, that says nothing yet, is asked."""
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS
"""Of a client (RFC 9113, 3.4): a server answers with settings of its own, as Ray's does."""
SETTINGS = 4
"""The type of that frame, its fourth byte."""


def check_answers(address: str) -> None:
    """Refuse an address at which no Ray listens: Ray would ask there for 14 minutes, in silence.

    Raises:
        ConfigError: nothing does, or what speaks otherwise; or `auto` finds no cluster.
    """
    asked = None
    try:
        asked = asked_address(address)
        if asked is not None:
            with socket.create_connection(parse_address(asked), ANSWER_S) as server:
                check_speaks_grpc(server)
    except (OSError, ValueError) as error:  # of the port, of the name, of how it is written
        where = f"{asked}: " if asked not in (None, address) else ""
        reason = getattr(error, "strerror", None) or last_line(error)
        raise ConfigError(no_cluster(address, f"{where}{reason}")) from error


def check_speaks_grpc(server: socket.socket) -> None:
    """What listens there speaks HTTP/2, or says nothing, or all is encrypted (`RAY_USE_TLS`).

    Raises:
        OSError: it says something else.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return
    server.settimeout(SPEAK_S)
    server.sendall(HTTP2_GREETING)
    try:
        said = b""
        while len(said) < 4 and (more := server.recv(4 - len(said))):
            said += more
    except TimeoutError:
        return
    if said[3:4] != bytes([SETTINGS]):
        raise OSError("what listens there is no Ray; a dashboard's port is not the cluster's")


def asked_address(address: str) -> str | None:
    """The `host:port` that `ray.init` asks; None where it starts a Ray, or is a client of one.

    Raises:
        ConnectionError: `auto` finds no cluster.
        ValueError: it is no address.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if "://" in address:
        return None
    found: str | None = services.canonicalize_bootstrap_address(address)
    return found


def no_cluster(address: str, reason: str) -> str:
    """The refusal of an address."""
    return (
        f"no Ray cluster answers at {address} ({reason}): start one (`ray start --head`), name "
        "another with --ray_address=HOST:PORT, or run on this machine alone with "
        "--ray_address=local"
    )


def last_line(error: BaseException) -> str:
    """Of an error's message, or its kind."""
    return next(iter(str(error).strip().splitlines()[-1:]), type(error).__name__)
