"""One copy of the base policy behind a batching queue, as an async Ray actor."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import ray

from pld_ray.policies.protocol import BasePolicy, PolicyDescription, Prediction, infer
from pld_ray.pool.batching import Batcher, Closed, Expired
from pld_ray.pool.metrics import RayMetrics, ReplicaStatistics
from pld_ray.pool.replica_server import ReplicaServer
from pld_ray.pool.routing import ReplicaTable

MakePolicy = Callable[..., BasePolicy] | str
"""A module-level function that makes a policy, or its name as "module:function"."""

Endpoint = tuple[str, int]
ANSWERED, REFUSED, EXPIRED = "answered", "draining", "not begun in time"


class Ticket(NamedTuple):
    """What a client tells with a request besides the request."""

    caller: str
    expires_in_s: float
    attempt: int
    """How often it was asked before."""
    missed: int
    """Deadlines that the client missed since its last ticket."""
    table_version: tuple[int, int]


class Answer(NamedTuple):
    """A request's chunks, or why there are none, and news of the pool.

    Requests and answers travel as one plain tuple each: Ray serialises every argument on its own,
    and named tuples by way of their class.
    """

    outcome: str
    chunks: np.ndarray | None
    features: np.ndarray | None
    normalized: np.ndarray | None
    other_rows: int | None
    table: ReplicaTable | None
    """The newest table, if the client's is older."""


class Replica:
    """Loads and warms up a policy (`load`), then answers requests in batches.

    Args:
        make_policy: called with `policy_kwargs`.
        max_batch_size, max_wait_ms, adaptive: see `Batcher`.
        num_threads: torch threads, where the policy uses torch; None leaves them alone.
        pool, name: tags of the metrics.
        token: what clients prove themselves with, see `ReplicaServer`; empty for no server.
    """

    def __init__(
        self,
        make_policy: MakePolicy,
        policy_kwargs: Mapping[str, Any],
        max_batch_size: int,
        max_wait_ms: float,
        adaptive: bool,
        num_threads: int | None,
        pool: str,
        name: str,
        token: bytes,
    ) -> None:
        self._make_policy, self._policy_kwargs = make_policy, policy_kwargs
        self._num_threads = num_threads
        self._batching = (max_batch_size, max_wait_ms, adaptive)
        self._tags = (pool, name)
        self._token = token
        self._table = ReplicaTable()

    async def load(self) -> tuple[PolicyDescription, Endpoint | None]:
        """Load the policy and warm it up; nothing else may be asked before this has returned."""
        await asyncio.to_thread(self._load)
        self._statistics = ReplicaStatistics(time.monotonic(), RayMetrics(*self._tags))
        self._batcher = Batcher(self._infer, *self._batching, self._statistics)
        if not self._token:
            return self._description, None
        host = ray.util.get_node_ip_address()
        self._server = ReplicaServer(self.infer, self._token)
        return self._description, (host, await self._server.listen(host))

    def _load(self) -> None:
        if self._num_threads is not None:
            import torch

            torch.set_num_threads(self._num_threads)
        self._policy = resolve(self._make_policy)(**self._policy_kwargs)
        self._description = PolicyDescription.of(self._policy)
        warm_up(self._policy, self._description, self._batching[0])

    async def infer(self, message: tuple[Any, ...]) -> tuple[Any, ...]:
        """Takes a `Message`; returns an `Answer`'s tuple."""
        observations, tasks, env_ids, seeds, leftovers, told = message
        ticket = Ticket(*told)._replace(table_version=tuple(told[-1]))
        self._statistics.called(ticket.attempt, ticket.missed)
        self._check(observations, tasks)  # a bad request must not spoil its batch
        leftovers = self._description.check_leftovers(leftovers, len(tasks))
        limits = (ticket.caller, ticket.expires_in_s)
        try:
            reply = await self._batcher.submit(
                observations, tasks, env_ids, seeds, *limits, leftovers
            )
        except Closed:
            self._statistics.refused += 1
            return (REFUSED, None, None, None, None, self._news(ticket))
        except Expired:
            return (EXPIRED, None, None, None, None, self._news(ticket))
        return (ANSWERED, *reply.prediction, reply.other_rows, self._news(ticket))

    async def poll(self, table: ReplicaTable) -> dict[str, Any]:
        """Take the newest table; tell how the replica does, its depth since the last poll."""
        self._table = table
        now = time.monotonic()
        return {
            "mean_depth": self._statistics.mean_depth(now),
            "busy_for_s": self._statistics.busy_for(now),
            "consecutive_failures": self._statistics.consecutive_failures,
            **self._statistics.counts(),
        }

    async def metrics(self) -> dict[str, Any]:
        return {"pid": os.getpid(), **self._statistics.snapshot(time.monotonic())}

    async def drain(self, table: ReplicaTable) -> None:
        """Finish what is queued; later requests are refused and told where to go instead."""
        self._table = table
        await self._batcher.drain()

    async def close(self) -> None:
        """Refuse what comes from now on: the kill that follows takes effect some time later."""
        self._batcher.close()
        await self._server.close()

    def _infer(self, **request: Any) -> Prediction:
        return infer(self._policy, **request)

    def _check(self, observations: Mapping[str, np.ndarray], tasks: list[str]) -> None:
        check = getattr(self._policy, "check", None)
        if check is not None:
            check(observations, tasks)
            return
        self._description.check(observations, tasks)
        for key, like in self._description.zeros(1).items():
            if observations[key].shape[1:] != like.shape[1:]:
                raise ValueError(
                    f"observation {key!r} has shape {observations[key].shape}; expected "
                    f"{(len(tasks), *like.shape[1:])}"
                )

    def _news(self, ticket: Ticket) -> ReplicaTable | None:
        return self._table if self._table.version > ticket.table_version else None


def resolve(make_policy: MakePolicy) -> Callable[..., BasePolicy]:
    """The function that "module:function" names; a function is returned as it is.

    Raises:
        ValueError: not of that form, or there is no such function.
    """
    if not isinstance(make_policy, str):
        return make_policy
    module, _, name = make_policy.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"make_policy {make_policy!r} cannot be loaded ({error}): give 'module:function', "
            "importable on every node"
        ) from error
    return function


def warm_up(policy: BasePolicy, description: PolicyDescription, max_batch_size: int) -> None:
    """One inference on zeros for each batch shape, so that no caller pays for compilation.

    Policies that pad to `batch_rows` have one shape; of others the smallest and the largest batch
    are tried. Policies with `rtc` are asked again with a leftover, which takes another path.
    """
    shapes = {description.batch_rows} if description.batch_rows else {1, max_batch_size}
    for rows in sorted(shapes):
        request: dict[str, Any] = {
            "observations": description.zeros(rows),
            "tasks": [""] * rows,
            "env_ids": list(range(rows)),
            "seeds": [0] * rows,
        }
        answer = infer(policy, **request)
        if description.rtc:
            assert answer.normalized is not None
            infer(policy, **request, leftovers=list(answer.normalized))
