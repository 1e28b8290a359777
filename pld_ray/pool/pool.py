"""A pool of base-policy replicas, as the driver holds it."""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

from pld_ray.pool.client import PoolClient
from pld_ray.pool.controller import PoolController
from pld_ray.pool.exchange import NAMESPACE
from pld_ray.pool.member import MAX_CONCURRENCY
from pld_ray.pool.placement import PoolError, beside_the_driver, check_group
from pld_ray.pool.spec import PoolSpec

STOP_TIMEOUT_S = 10.0
METRICS_TIMEOUT_S = 60.0
RETRY_S = 0.2


class BasePolicyPool:
    """Replicas of one base policy as Ray actors, shared by many env runners.

    A controller actor on this node starts the replicas, replaces those that die or hang, and
    scales their number with the load; all end with the process that made the pool. Answers equal an
    inline policy's bit for bit if it has the same `batch_rows` on the same kind of device.

    Attributes:
        name: of the controller actor, in the namespace `pld_ray`.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is not usable (checked before any actor
            starts), or a setting is out of range.
        PoolError: (a RuntimeError) the cluster, or the placement group that this process is in,
            is too small for the replicas, or one of them does not start.
    """

    def __init__(self, spec: PoolSpec) -> None:
        spec = spec.located()
        spec.check()
        if spec.check_room:
            check_fits(spec)
        check_group(spec)
        self.name = f"base_policy_{uuid.uuid4().hex[:8]}"
        self._spec, self._token = spec, secrets.token_bytes(32)
        self._published = 0
        actor = ray.remote(PoolController).options(
            name=self.name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=MAX_CONCURRENCY,
            scheduling_strategy=beside_the_driver(),
        )
        self._controller: Any = actor.remote(spec, self.name, self._token)
        try:
            self._description, self._table = ray.get(self._controller.start.remote())
        except (RayActorError, RayTaskError) as error:
            self.stop()
            cause = " ".join(str(getattr(error, "cause", None) or error).split())
            raise PoolError(f"a base-policy replica did not start: {cause}") from error

    def client(self, seed: int | None = None) -> PoolClient:
        """A picklable `BasePolicy` that asks these replicas; `seed` decides whom it asks first."""
        deadline_s = self._spec.deadline_s
        late_after_s = min(self._spec.late_after_s, deadline_s / 2)
        limits = (deadline_s, late_after_s, self._token)
        return PoolClient(self.name, self._table, self._description, *limits, seed)

    def publish(self, state: Any) -> int:
        """Weights of a policy that learns, for the requests that name the version returned here.

        A replica fetches them when it is first asked for them.

        Args:
            state: what the policy's `take_weights` takes.
        """
        self._published += 1
        ray.get(self._controller.publish.remote(self._published, [ray.put(state)]))
        return self._published

    def metrics(self) -> dict[str, Any]:
        """Load of the pool as plain values.

        Returns:
            Now: "num_replicas", "num_starting", "queue_depth" (rows that wait or are inferred),
            "busy_share" (mean share of the last minute inside the policy; on a GPU, of the GPU's
            time), "latency_ms" ("p50", "p95", "p99" of the last 1000 requests of each replica,
            queue included; nan before the first). Since the start, replaced replicas included
            (one that crashed may lack its last half second): "requests", "batches", "rows",
            "batch_sizes" (rows -> batches), "retries", "deadline_misses", "refused" (while
            draining), "restarts". "replicas": the same for each, with "name" and "pid", or None
            for one that does not answer.

        Raises:
            TimeoutError: the pool's controller does not answer within a minute.
            RuntimeError: the pool was stopped.
        """
        if self._controller is None:
            raise RuntimeError("this base-policy pool was stopped: make a new one")
        deadline = time.monotonic() + METRICS_TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(ActorUnavailableError):  # Ray restarts it
                return ray.get(self._controller.metrics.remote(), timeout=left)
            time.sleep(RETRY_S)
        raise TimeoutError(f"the controller of {self.name} is not running")

    def stop(self) -> None:
        """End the replicas for good and wait until Ray has forgotten them; safe to call again."""
        if self._controller is None:
            return
        controller, self._controller = self._controller, None
        names = [self.name]
        with contextlib.suppress(RayActorError, GetTimeoutError):  # its replicas end with it
            names += ray.get(controller.stop.remote(), timeout=STOP_TIMEOUT_S)
        ray.kill(controller, no_restart=True)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (left := [n for n in names if is_alive(n)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            raise TimeoutError(f"base-policy actors {left} did not stop in {STOP_TIMEOUT_S} s")


def check_fits(spec: PoolSpec) -> None:
    """Refuse replicas that the cluster can never hold, instead of waiting for them.

    Raises:
        PoolError: no node is large enough for one, or the cluster for all; names the resource.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, amount in spec.needs().items():
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        total = sum(node.get(name, 0.0) for node in nodes)
        if amount > largest or amount * spec.replicas > total:
            raise PoolError(
                f"the cluster is too small for the base-policy pool: {spec.replicas} replicas need "
                f"{amount:g} {name} each; the largest node has {largest:g} {name}, all nodes "
                f"together {total:g}. Lower the replicas or their share, add nodes, or set "
                "--placement.check=false if the cluster grows on demand"
            )


def is_alive(name: str) -> bool:
    """Ray still knows the actor `name`."""
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True
