"""One copy of the base policy behind a batching queue, as an async Ray actor."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import ray

from pld_ray.policies import BasePolicy, PolicyDescription, Prediction
from pld_ray.pool.batching import Batcher
from pld_ray.pool.exchange import NAMESPACE
from pld_ray.pool.messages import Answer, Endpoint, ReplicaTable, Request
from pld_ray.pool.metrics import RayMetrics, ReplicaStatistics
from pld_ray.pool.server import ReplicaServer
from pld_ray.pool.spec import PoolSpec, resolve


class Replica:
    """Loads and warms up a policy (`load`), then answers the requests of its socket in batches.

    Args:
        spec: of the pool.
        pool, name: tags of the metrics.
        token: what clients prove themselves with, see `ReplicaServer`.
    """

    def __init__(self, spec: PoolSpec, pool: str, name: str, token: bytes) -> None:
        self._spec = spec
        self._tags = (pool, name)
        self._server = ReplicaServer(self.answer, token)
        self._table = ReplicaTable()

    async def load(self) -> tuple[PolicyDescription, Endpoint]:
        """Load the policy and warm it up; nothing else may be asked before this has returned."""
        policy = await asyncio.to_thread(self._load)
        self._statistics = ReplicaStatistics(time.monotonic(), RayMetrics(*self._tags))
        limits = (self._spec.max_batch_size, self._spec.max_wait_ms)
        self._policy, self._weights = policy, 0
        self._batcher = Batcher(self._infer, *limits, self._statistics)
        return self._description, await self._server.listen(ray.util.get_node_ip_address())

    def _load(self) -> BasePolicy:
        policy = resolve(self._spec.make_policy)(**self._spec.arguments)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(max(1, int(self._spec.num_cpus_per_replica)))
        self._description = PolicyDescription.of(policy)
        warm_up(policy, self._description, self._spec.max_batch_size)
        return policy

    def _infer(self, weights: tuple[int, bool] | None = None, **request: Any) -> Prediction:
        """One batch, in the batcher's thread; with the weights that it names."""
        if weights is None:
            return self._policy.infer(**request)
        version, cloned = weights
        learnt: Any = self._policy
        if version != self._weights:
            controller = ray.get_actor(self._tags[0], namespace=NAMESPACE)
            (reference,) = ray.get(controller.weights.remote(version))
            learnt.take_weights(ray.get(reference))
            self._weights = version
        learnt.cloned = cloned
        return learnt.infer(**request)

    async def answer(self, request: Request) -> Answer:
        """What the server hands out.

        Raises:
            ValueError: the request does not fit the policy.
            Exception: what the policy raised.
        """
        self._statistics.called(request.attempt, request.missed_deadlines)
        # here: a bad request must not spoil its batch
        self._description.check(request.observations, request.tasks, request.leftovers)
        answer = await self._batcher.submit(request)
        if self._table.version > request.table_version:
            answer.table = self._table
        return answer

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
        """Its counts, load and latencies, see `ReplicaStatistics.snapshot`."""
        return {"pid": os.getpid(), **self._statistics.snapshot(time.monotonic())}

    async def drain(self, table: ReplicaTable) -> None:
        """Finish what is queued; later requests are refused and told where to go instead."""
        self._table = table
        await self._batcher.drain()

    async def close(self) -> None:
        """Refuse what comes from now on: the kill that follows takes effect some time later."""
        self._batcher.close()
        await self._server.close()


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
        answer = policy.infer(**request)
        if description.rtc:
            policy.infer(**request, leftovers=answer.normalized)
