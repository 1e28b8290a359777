"""Processes of a test that train together through gloo."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from pld_ray.sharded.ranks import Ranks


def on_ranks(number: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(ranks, *arguments)` in so many processes; an error in one is raised here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_run, (number, port, function, arguments), nprocs=number)


def _run(rank: int, number: int, port: int, function: Callable[..., None], arguments: Any) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=number)
    try:
        function(Ranks(rank, number, planned=2), *arguments)
    finally:
        dist.destroy_process_group()
