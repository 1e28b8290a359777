"""One replica as the pool's controller sees it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pld_ray.policies.protocol import PolicyDescription
from pld_ray.pool.autoscaler import Scaling
from pld_ray.pool.client import NAMESPACE
from pld_ray.pool.replica import MakePolicy, Replica
from pld_ray.pool.routing import ReplicaTable

METRICS_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
MAX_FAILURES = 3  # batches in a row that raise, after which a replica counts as broken


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """What a controller must know; see `BasePolicyPool`.

    Attributes:
        options: Ray actor options of each replica.
        token: what replicas' sockets ask for; empty if they have none.
    """

    name: str
    make_policy: MakePolicy
    policy_kwargs: Mapping[str, Any]
    num_replicas: int
    scaling: Scaling
    max_batch_size: int
    max_wait_ms: float
    adaptive: bool
    num_threads: int | None
    options: Mapping[str, Any]
    hang_timeout_s: float
    start_timeout_s: float
    token: bytes


class NotStarted(Exception):
    """A replica is not ready; the message says why."""


class Member:
    """Starts a replica's actor and asks it things.

    Attributes:
        state: "starting", "ready", "draining" or "gone"; the controller sets it.
        endpoint: of its socket, once it is ready.
        report: its latest counts.
    """

    def __init__(self, spec: PoolSpec, name: str) -> None:
        self.name = name
        self.state = "starting"
        self.endpoint: tuple[str, int] | None = None
        self.report: dict[str, Any] = {}
        self._spec = spec
        actor = ray.remote(Replica).options(name=name, namespace=NAMESPACE, **spec.options)
        self._handle = actor.remote(
            spec.make_policy,
            spec.policy_kwargs,
            spec.max_batch_size,
            spec.max_wait_ms,
            spec.adaptive,
            spec.num_threads,
            spec.name,
            name,
            spec.token,
        )

    @property
    def depth(self) -> float:
        """Mean rows that waited or were inferred before the last look at it."""
        return self.report.get("mean_depth", 0.0)

    async def load(self) -> PolicyDescription:
        """Return when the replica is ready.

        Raises:
            NotStarted: it failed, or takes longer than `start_timeout_s`.
        """
        limit = self._spec.start_timeout_s
        try:
            description, self.endpoint = await asyncio.wait_for(self._handle.load.remote(), limit)
        except RayTaskError as error:  # the policy's own, without Ray's traceback
            cause = error.cause if isinstance(error.cause, BaseException) else error
            raise NotStarted(f"{type(cause).__name__}: {cause}") from error
        except RayError as error:
            raise NotStarted(str(error)) from error
        except TimeoutError:
            raise NotStarted(
                f"not ready within start_timeout_s={limit:g}; it needs {self._needs()} and free in "
                f"the cluster are {ray.available_resources()}"
            ) from None
        return description

    async def trouble(self, table: ReplicaTable) -> str:
        """Hand over the newest table; what is wrong with the replica, empty if nothing is."""
        limit = self._spec.hang_timeout_s
        try:
            self.report = await asyncio.wait_for(self._handle.poll.remote(table), limit)
        except RayError as error:
            return f"was lost ({type(error).__name__})"
        except TimeoutError:
            return f"did not answer for {limit:g} s"
        if self.report["busy_for_s"] > limit:
            return f"hangs: its policy has not returned for {self.report['busy_for_s']:.0f} s"
        if self.report["consecutive_failures"] >= MAX_FAILURES:
            return f"failed on {MAX_FAILURES} batches in a row"
        return ""

    async def metrics(self) -> dict[str, Any] | None:
        """Its counts; None if it does not answer."""
        return await answer(self._handle.metrics.remote(), METRICS_TIMEOUT_S)

    async def drain(self, table: ReplicaTable) -> None:
        """Return when what was queued has been answered, or the replica hangs."""
        await answer(self._handle.drain.remote(table), self._spec.hang_timeout_s)
        self.report = await self.metrics() or self.report

    async def close(self) -> None:
        """Return when it refuses requests, or does not answer."""
        await answer(self._handle.close.remote(), CLOSE_TIMEOUT_S)

    def end(self) -> None:
        """Kill it."""
        self.state = "gone"
        ray.kill(self._handle)

    def _needs(self) -> dict[str, Any]:
        options = self._spec.options
        return {k: options[k] for k in ("num_cpus", "num_gpus", "resources") if options.get(k)}


async def answer(reference: Any, timeout_s: float) -> Any:
    """What an actor call returns, None if it returns nothing in time."""
    try:
        return await asyncio.wait_for(reference, timeout_s)
    except (TimeoutError, RayError):
        return None
