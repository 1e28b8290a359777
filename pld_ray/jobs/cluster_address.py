"""Where a Ray cluster is to be, and whether anything listens there before Ray asks for it."""

from __future__ import annotations

import os
import socket

from ray._common.network_utils import parse_address
from ray._private import services

from pld_ray.config import ConfigError

ANSWER_S = 10.0
"""That a port has to answer."""


def check_answers(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would ask there for 14 minutes, in silence.

    Raises:
        ConfigError: nothing does, or `auto` finds no cluster.
    """
    asked = None
    try:
        asked = asked_address(address)
        if asked is not None:
            socket.create_connection(parse_address(asked), ANSWER_S).close()
    except (OSError, ValueError) as error:  # of the port, of the name, of how it is written
        where = f"{asked}: " if asked not in (None, address) else ""
        reason = getattr(error, "strerror", None) or last_line(error)
        raise ConfigError(no_cluster(address, f"{where}{reason}")) from error


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
        f"no Ray cluster answers at {address} ({reason}): start one (`ray start --head`), or leave "
        "out --ray_address to run on this machine alone"
    )


def last_line(error: BaseException) -> str:
    """Of an error's message, or its kind."""
    return next(iter(str(error).strip().splitlines()[-1:]), type(error).__name__)
