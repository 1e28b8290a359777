"""`pld-ray actor`: this machine as a node of a learner's Ray, for as long as both are there."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pld_ray.errors import UserError
from pld_ray.jobs.cluster import has_auth_token
from pld_ray.rollout.keyboard import TERMINAL

LOOK_S = 1.0
"""Between two looks for a learner."""
STOP_S = 20.0
"""That Ray's processes have to end after SIGTERM."""
ATTEMPTS = 3
"""To join, in a row, before it is given up: a busy machine may start too slowly."""
PR_SET_PDEATHSIG = 1
JOINED = "Ray runtime started"


class ActorError(UserError, RuntimeError):
    """This machine cannot join; the message says why."""


def act(
    address: str,
    resources: Mapping[str, float],
    num_cpus: int,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Join the learner's Ray whenever it is there; returns never, a signal ends it.

    Args:
        address: `host:port` of the learner's Ray.
        resources: custom resources of this machine, such as `{"robot": 1}`.
        num_cpus: cores that Ray may use here.
        say: takes a line for each thing that happens.

    Raises:
        ActorError: Ray does not start here, or the learner's Ray refuses this machine.
        KeyboardInterrupt: a signal came; nothing of Ray is left behind.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failures = 0
    try:
        while True:
            wait_for(address, say)
            with terminal_given_back(), ray_node(address, resources, num_cpus) as node:
                failures += 1
                last = ""
                for line in node.stdout or ():
                    last = line.strip() or last
                    if JOINED in line:
                        failures = 0
                        say(f"joined {address} with {describe(resources)}; Ctrl-C leaves")
            if failures >= ATTEMPTS:
                raise ActorError(
                    f"the Ray at {address} cannot be joined: {last}; see that both machines have "
                    "the same Python, Ray and token (~/.ray/auth_token)"
                )
            say(f"{address} {'could not be joined' if failures else 'is gone'}: {last}")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"left {address}; an open episode is lost, and the same command comes back"
        ) from None


def describe(resources: Mapping[str, float]) -> str:
    """In words."""
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "CPUs"


def wait_for(address: str, say: Callable[[str], None]) -> None:
    """Return when something listens at the address."""
    host, _, port = address.rpartition(":")
    said = False
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), LOOK_S):
            return
        if not said:
            say(f"nothing answers at {address}: waiting for pld-ray train --ray_port={port} there")
            said = True
        time.sleep(LOOK_S)


@contextlib.contextmanager
def terminal_given_back() -> Iterator[None]:
    """The terminal is as before at the end, even where a runner that read keys was killed."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (OSError, ValueError, termios.error):  # there is none
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def ray_node(
    address: str, resources: Mapping[str, float], num_cpus: int
) -> Iterator[subprocess.Popen[str]]:
    """`ray start --block`, whose output can be read; it ends with the context, or this process."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += [f"--address={address}", f"--num-cpus={num_cpus}", "--dashboard-agent-listen-port=0"]
    command += [f"--resources={json.dumps(dict(resources))}"]
    environment = dict(os.environ)
    # or Ray waits for the runner to be idle, which it never is: the arm would move on meanwhile
    environment.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
    if has_auth_token():
        environment.setdefault("RAY_AUTH_MODE", "token")
    # a terminal, for the keyboard of the person beside it
    with contextlib.suppress(OSError, ValueError):
        environment[TERMINAL] = os.ttyname(sys.stdin.fileno())
    libc = ctypes.CDLL(None)
    node = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is this process's
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    try:
        yield node
    finally:
        end(node)


def end(node: subprocess.Popen[Any]) -> None:
    """Stop Ray's processes of this node, and no others."""
    if node.poll() is None:
        node.terminate()
    try:
        node.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
