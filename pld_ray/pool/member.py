"""One replica as the pool's controller sees it."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError

from pld_ray.policies import PolicyDescription
from pld_ray.pool.exchange import NAMESPACE
from pld_ray.pool.messages import Endpoint, ReplicaTable
from pld_ray.pool.placement import of_replica
from pld_ray.pool.replica import Replica
from pld_ray.pool.spec import PoolSpec

METRICS_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
MAX_FAILURES = 3  # batches in a row that raise, after which a replica counts as broken
MAX_CONCURRENCY = 1000  # calls that may wait in one actor


class StartFailed(Exception):
    """A replica is not ready; the message says why."""


class ReplicaFailed(Exception):
    """A replica must be replaced; the message says why."""


class Member:
    """Starts a replica's actor and asks it things.

    Attributes:
        state: the controller sets it.
        endpoint: of its socket, once it is ready.
        counts: its latest.
    """

    def __init__(self, spec: PoolSpec, pool: str, name: str, token: bytes) -> None:
        self.name = name
        self.state: Literal["starting", "ready", "draining", "gone"] = "starting"
        self.endpoint: Endpoint | None = None
        self.counts: dict[str, Any] = {}
        self._spec = spec
        actor = ray.remote(Replica).options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=spec.num_cpus_per_replica,
            num_gpus=spec.num_gpus_per_replica,
            resources=spec.resources,
            scheduling_strategy=of_replica(spec.scheduling_strategy),
            max_concurrency=MAX_CONCURRENCY,
        )
        self._handle = actor.remote(spec, pool, name, token)

    @property
    def depth(self) -> float:
        """Mean rows that waited or were inferred before the last look at it."""
        return self.counts.get("mean_depth", 0.0)

    async def load(self) -> PolicyDescription:
        """Return when the replica is ready.

        Raises:
            StartFailed: it failed, or takes longer than `start_timeout_s`.
        """
        limit = self._spec.start_timeout_s
        try:
            description, self.endpoint = await asyncio.wait_for(self._handle.load.remote(), limit)
        except RayTaskError as error:  # the policy's own, without Ray's traceback
            cause = error.cause if isinstance(error.cause, BaseException) else error
            raise StartFailed(f"{type(cause).__name__}: {cause}") from error
        except RayError as error:
            raise StartFailed(str(error)) from error
        except TimeoutError:
            raise StartFailed(
                f"not ready within start_timeout_s={limit:g}; it needs {self._spec.needs()} and "
                f"free in the cluster are {ray.available_resources()}"
            ) from None
        return description

    async def poll(self, table: ReplicaTable) -> None:
        """Hand over the newest table and take the replica's counts.

        Raises:
            ReplicaFailed: it was lost, hangs or fails.
        """
        limit = self._spec.hang_timeout_s
        try:
            self.counts = await asyncio.wait_for(self._handle.poll.remote(table), limit)
        except RayError as error:
            raise ReplicaFailed(f"was lost ({type(error).__name__})") from error
        except TimeoutError:
            raise ReplicaFailed(f"did not answer for {limit:g} s") from None
        if (seconds := self.counts["busy_for_s"]) > limit:
            raise ReplicaFailed(f"hangs: its policy has not returned for {seconds:.0f} s")
        if self.counts["consecutive_failures"] >= MAX_FAILURES:
            raise ReplicaFailed(f"failed on {MAX_FAILURES} batches in a row")

    async def metrics(self) -> dict[str, Any] | None:
        """Its counts; None if it does not answer."""
        return await answer(self._handle.metrics.remote(), METRICS_TIMEOUT_S)

    async def drain(self, table: ReplicaTable) -> None:
        """Return when what was queued has been answered, or the replica hangs."""
        await answer(self._handle.drain.remote(table), self._spec.hang_timeout_s)
        self.counts = await self.metrics() or self.counts

    async def close(self) -> None:
        """Return when it refuses requests, or does not answer."""
        await answer(self._handle.close.remote(), CLOSE_TIMEOUT_S)

    def end(self) -> None:
        """Kill it."""
        self.state = "gone"
        ray.kill(self._handle)


async def answer(reference: Any, timeout_s: float) -> Any:
    """What an actor call returns, None if it returns nothing in time."""
    try:
        return await asyncio.wait_for(reference, timeout_s)
    except (TimeoutError, RayError):
        return None
