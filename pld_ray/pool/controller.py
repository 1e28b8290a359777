"""Keeps a pool's replicas: starts, watches, replaces and scales them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any

from pld_ray.policies import PolicyDescription
from pld_ray.pool.autoscaler import Pressure, scale
from pld_ray.pool.member import Member, ReplicaFailed, StartFailed
from pld_ray.pool.messages import ReplicaTable
from pld_ray.pool.metrics import added_up, counter, latency_ms
from pld_ray.pool.spec import PoolSpec

POLL_S = 0.5
KEPT_WEIGHTS = 2  # versions: the present one, and that of requests on their way
LONGEST_PAUSE_S = 30.0  # between two attempts to start a replica that does not start
OTHER_POLICY = (
    "it loads another policy ({0.fingerprint:.12}) than the pool began with "
    "({1.fingerprint:.12}): put that one back where it lay"
)

logger = logging.getLogger(__name__)


class PoolController:
    """An async Ray actor without resources. Its replicas end with it.

    If it crashes, Ray restarts it and it starts new replicas when the first client asks it.
    """

    def __init__(self, spec: PoolSpec, name: str, token: bytes) -> None:
        self._spec = spec
        self._name = name
        self._token = token
        self._members: dict[str, Member] = {}
        self._target = spec.replicas
        self._pressure = Pressure()
        self._epoch = time.time_ns()
        self._versions, self._serials = itertools.count(1), itertools.count()
        self._table = ReplicaTable((self._epoch, 0))
        self._description: PolicyDescription | None = None
        self._stopped = False
        self._restarts = 0
        self._past: list[dict[str, Any]] = []
        self._start_failures = 0
        self._start_error = ""
        self._next_start = 0.0
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._weights: dict[int, Any] = {}
        self._restart_counter = counter("restarts", "Replicas that were replaced", {"pool": name})

    # --- what clients and the pool ask -----------------------------------------------------------

    async def start(self) -> tuple[PolicyDescription, ReplicaTable]:
        """Return when the first replicas are ready.

        Raises:
            RuntimeError: one does not start; the message is its error.
        """
        self._run()
        while len(self._in_state("ready")) < self._target or self._in_state("starting"):
            if self._start_error:
                raise RuntimeError(self._start_error)
            await self._changed.wait()
        assert self._description is not None
        return self._description, self._table

    async def publish(self, version: int, reference: list[Any]) -> None:
        """Keep weights, by a reference in a list, for the replicas that will be asked for them."""
        self._weights[version] = reference
        for old in sorted(self._weights)[:-KEPT_WEIGHTS]:
            del self._weights[old]

    async def weights(self, version: int) -> list[Any]:
        """The reference of `publish`.

        Raises:
            ValueError: they are not here any more.
        """
        if version not in self._weights:
            raise ValueError(
                f"weights {version} of the policy are not in its pool any more (its controller was "
                "started again, or much was published since): go on with --resume"
            )
        return self._weights[version]

    async def table(self) -> ReplicaTable:
        self._run()
        return self._table

    async def metrics(self) -> dict[str, Any]:
        """See `BasePolicyPool.metrics`."""
        self._run()
        members = [m for m in self._members.values() if m.state in ("ready", "draining")]
        snapshots = await asyncio.gather(*(member.metrics() for member in members))
        alive = [snapshot for snapshot in snapshots if snapshot is not None]
        latencies = [latency for s in alive for latency in s["latencies"]]
        replicas = [
            s and {**{k: v for k, v in s.items() if k != "latencies"}, "name": m.name}
            for m, s in zip(members, snapshots, strict=True)
        ]
        return {
            **added_up([*self._past, *alive]),
            "queue_depth": sum(s["queue_depth"] for s in alive),
            "latency_ms": latency_ms(latencies),
            "busy_share": sum(s["busy_share"] for s in alive) / max(len(alive), 1),
            "num_replicas": len(self._in_state("ready")),
            "num_starting": len(self._in_state("starting")),
            "restarts": self._restarts,
            "replicas": replicas,
        }

    async def stop(self) -> list[str]:
        """End all replicas at once; their names."""
        self._stopped, self._target = True, 0
        if self._loop is not None:
            self._loop.cancel()
        names = list(self._members)
        await asyncio.gather(*(member.close() for member in self._in_state("ready")))
        for member in list(self._members.values()):
            self._end(member)
        self._publish()
        return names

    # --- the set of replicas ---------------------------------------------------------------------

    def _run(self) -> None:
        """Begin to manage, on the first call after the actor's start."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._manage())

    async def _manage(self) -> None:
        while True:
            self._scale()
            self._reconcile()
            if len(self._in_state("ready")) > 1:
                self._publish()  # loads
            await asyncio.sleep(POLL_S)

    def _scale(self) -> None:
        ready = self._in_state("ready")
        if self._stopped or not ready:
            return
        depth = sum(member.depth for member in ready)
        before = self._target
        self._target, self._pressure = scale(
            self._spec, self._pressure, before, depth, time.monotonic()
        )
        if self._target != before:
            logger.info("base policy: %d replicas -> %d, depth %.1f", before, self._target, depth)

    def _reconcile(self) -> None:
        """Start what is missing; end or drain what is too many."""
        starting, ready = self._in_state("starting"), self._in_state("ready")
        missing = self._target - len(starting) - len(ready)
        if missing > 0 and time.monotonic() >= self._next_start:
            for _ in range(missing):
                self._start()
        for member in starting[: max(0, -missing)]:
            self._end(member)
        ready.sort(key=lambda member: member.depth)
        for member in ready[: max(0, -missing - len(starting))]:
            member.state = "draining"
            self._background(self._drain(member))

    def _start(self) -> None:
        name = f"{self._name}_{self._epoch}_{next(self._serials)}"
        self._members[name] = Member(self._spec, self._name, name, self._token)
        self._background(self._watch(self._members[name]))

    async def _watch(self, member: Member) -> None:
        """Wait until the replica is ready, then look at it as long as it does well."""
        try:
            description = await member.load()
        except StartFailed as error:
            self._not_started(member, str(error))
            return
        if member.state != "starting":
            return
        first = self._description = self._description or description
        if description.fingerprint != first.fingerprint:
            self._not_started(member, OTHER_POLICY.format(description, first))
            return
        self._start_failures, self._start_error = 0, ""
        member.state = "ready"
        self._publish()
        while member.state == "ready":
            await asyncio.sleep(POLL_S)
            try:
                await member.poll(self._table)
            except ReplicaFailed as reason:
                self._replace(member, reason)

    def _replace(self, member: Member, reason: ReplicaFailed) -> None:
        if member.state != "ready":
            return
        logger.warning("base-policy replica %s %s: replacing it", member.name, reason)
        self._restarts += 1
        self._restart_counter.inc(1)
        self._end(member)
        self._reconcile()
        self._publish()

    def _not_started(self, member: Member, error: str) -> None:
        if member.state != "starting":
            return
        logger.warning("base-policy replica %s did not start: %s", member.name, error)
        self._start_error = error
        self._start_failures += 1
        pause = min(2.0 ** (self._start_failures - 1), LONGEST_PAUSE_S)
        self._next_start = time.monotonic() + pause
        self._end(member)
        self._publish()

    async def _drain(self, member: Member) -> None:
        member.state = "draining"
        self._publish()
        await member.drain(self._table)
        self._end(member)
        self._publish()

    def _end(self, member: Member) -> None:
        """Kill the replica; its counts are kept."""
        if member.state == "gone":
            return
        self._members.pop(member.name, None)
        if "requests" in member.counts:
            self._past = [added_up([*self._past, member.counts])]
        member.end()

    # --- small things ----------------------------------------------------------------------------

    def _publish(self) -> None:
        """Make a new table and wake those who wait for a change."""
        ready = self._in_state("ready")
        self._table = ReplicaTable(
            (self._epoch, next(self._versions)),
            {member.name: member.depth for member in ready},
            {member.name: member.endpoint for member in ready if member.endpoint},
            self._note(),
            accepting=not self._stopped,
        )
        self._changed.set()
        self._changed = asyncio.Event()

    def _note(self) -> str:
        if self._stopped:
            return "the pool was stopped"
        return self._start_error and f"none starts: {self._start_error}"

    def _in_state(self, state: str) -> list[Member]:
        return [member for member in self._members.values() if member.state == state]

    def _background(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)  # asyncio itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
