"""A pool of base-policy replicas, as the driver holds it."""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError

from pld_ray.config.groups import PolicyConfig
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.policies.protocol import BATCH_ROWS
from pld_ray.pool.autoscaler import Scaling
from pld_ray.pool.client import NAMESPACE, PoolClient
from pld_ray.pool.controller import PoolController
from pld_ray.pool.member import PoolSpec
from pld_ray.pool.placement import beside_the_driver, check_fits
from pld_ray.pool.replica import MakePolicy, resolve

__all__ = ["BasePolicyPool", "PoolClient"]

LEROBOT = "pld_ray.policies.lerobot_adapter:load_base_policy"
STOP_TIMEOUT_S = 10.0
METRICS_TIMEOUT_S = 60.0
RETRY_S = 0.2
MAX_CONCURRENCY = 1000  # requests that may wait in one replica


class BasePolicyPool:
    """Replicas of one base policy as Ray actors, shared by many env runners.

    A controller actor on this node starts the replicas, replaces those that die or hang, and
    scales their number with the load; all end with the process that made the pool.

    Args:
        path: LeRobot pretrained directory, readable on every node; None is the embedded policy.
        num_replicas: R, to begin with.
        max_batch_size: rows that a replica gathers at most; a multiple of `batch_rows` wastes none.
        max_wait_ms: how long an idle replica waits for a batch to grow at most.
        num_cpus: CPUs reserved by each replica, may be fractional.
        num_gpus: GPUs reserved by each replica, may be fractional.
        device: torch device of the replicas; default "cuda" when `num_gpus` > 0, else "cpu".
        batch_rows: rows of each network call, see `LeRobotBasePolicy`; answers equal an inline
            policy's bit for bit if it has the same `batch_rows` on the same kind of device.
        loader_options: further keyword arguments of `load_base_policy`.
        make_policy: makes another kind of policy: a module-level function, or its name as
            "module:function". It is called with `policy_kwargs` alone; `path`, `device`,
            `batch_rows` and `loader_options` are not used.
        policy_kwargs: keyword arguments of `make_policy`.
        adaptive: wait for company only as long as it pays, see `AdaptiveWait`.
        min_replicas, max_replicas: bounds of autoscaling; default both R, no scaling.
        target_depth: rows, waiting and in work, that one replica is meant to carry; default
            `max_batch_size`.
        scale_up_after_s, scale_down_after_s: how long the load must last, see `Scaling`.
        deadline_s: seconds until a client's request fails.
        late_after_s: seconds after which a client asks a second replica as well.
        hang_timeout_s: seconds of one inference after which a replica is killed and replaced.
        start_timeout_s: seconds that a replica may take to load and warm up.
        resources: custom Ray resources reserved by each replica.
        scheduling_strategy: Ray's, of each replica, e.g. "SPREAD".
        sockets: clients reach replicas by a socket of their own, a tenth of the cost of an actor
            call, and by actor calls where it cannot be reached; False for actor calls only.

    Attributes:
        name: of the controller actor, in the namespace `pld_ray`.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is not usable (checked before any actor
            starts), or a setting is out of range.
        RuntimeError: the cluster is too small for the replicas, or one of them does not start.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        num_replicas: int = PolicyConfig.replicas,
        max_batch_size: int = PolicyConfig.max_batch_size,
        max_wait_ms: float = PolicyConfig.max_wait_ms,
        num_cpus: float = PolicyConfig.num_cpus_per_replica,
        num_gpus: float = PolicyConfig.num_gpus_per_replica,
        device: str | None = None,
        batch_rows: int = BATCH_ROWS,
        *,
        loader_options: Mapping[str, Any] | None = None,
        make_policy: MakePolicy | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        adaptive: bool = True,
        min_replicas: int | None = None,
        max_replicas: int | None = None,
        target_depth: float | None = None,
        scale_up_after_s: float = 2.0,
        scale_down_after_s: float = 60.0,
        deadline_s: float = PolicyConfig.deadline_s,
        late_after_s: float = 30.0,
        hang_timeout_s: float = PolicyConfig.hang_timeout_s,
        start_timeout_s: float = 600.0,
        resources: Mapping[str, float] | None = None,
        scheduling_strategy: Any = None,
        sockets: bool = True,
    ) -> None:
        check_positive(
            deadline_s=deadline_s,
            late_after_s=late_after_s,
            hang_timeout_s=hang_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        for name, value, low in (
            ("num_replicas", num_replicas, 1),
            ("max_batch_size", max_batch_size, 1),
            ("max_wait_ms", max_wait_ms, 0),
        ):
            if value < low:
                raise ValueError(f"{name} must be at least {low}, not {value}")
        scaling = Scaling(
            num_replicas if min_replicas is None else min_replicas,
            num_replicas if max_replicas is None else max_replicas,
            max_batch_size if target_depth is None else target_depth,
            scale_up_after_s,
            scale_down_after_s,
        )
        if not scaling.min_replicas <= num_replicas <= scaling.max_replicas:
            raise ValueError(
                f"num_replicas={num_replicas} must lie between min_replicas="
                f"{scaling.min_replicas} and max_replicas={scaling.max_replicas}"
            )
        device = device or ("cuda" if num_gpus > 0 else "cpu")
        if make_policy is None:
            policy_kwargs = {
                "path": location(path),
                "device": device,
                "batch_rows": batch_rows,
                **(loader_options or {}),
            }
        elif isinstance(make_policy, str) and ":" not in make_policy:
            resolve(make_policy)  # says what is wrong; the module may exist on the nodes only
        needs = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        check_fits(needs, scaling.min_replicas)
        self._deadline_s, self._late_after_s = deadline_s, late_after_s
        self._token = secrets.token_bytes(32) if sockets else b""
        self.name = f"base_policy_{uuid.uuid4().hex[:8]}"
        options: dict[str, Any] = {
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": dict(resources or {}),
            "max_concurrency": MAX_CONCURRENCY,
        }
        if scheduling_strategy is not None:
            options["scheduling_strategy"] = scheduling_strategy
        spec = PoolSpec(
            name=self.name,
            make_policy=make_policy or LEROBOT,
            policy_kwargs=dict(policy_kwargs or {}),
            num_replicas=num_replicas,
            scaling=scaling,
            max_batch_size=max_batch_size,
            max_wait_ms=max_wait_ms,
            adaptive=adaptive,
            num_threads=max(1, int(num_cpus)) if make_policy is None else None,
            options=options,
            hang_timeout_s=hang_timeout_s,
            start_timeout_s=start_timeout_s,
            token=self._token,
        )
        self._controller: Any = (
            ray.remote(PoolController)
            .options(
                name=self.name,
                namespace=NAMESPACE,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=MAX_CONCURRENCY,
                scheduling_strategy=beside_the_driver(),
            )
            .remote(spec)
        )
        try:
            self._description, self._table = ray.get(self._controller.start.remote())
        except (RayActorError, RayTaskError) as error:
            self.stop()
            cause = getattr(error, "cause", None) or error
            raise RuntimeError(f"a base-policy replica did not start: {cause}") from error

    def client(self, seed: int | None = None) -> PoolClient:
        """A picklable `BasePolicy` that asks these replicas; `seed` decides whom it asks first."""
        return PoolClient(
            self.name,
            self._table,
            self._description,
            self._deadline_s,
            self._late_after_s,
            self._token,
            seed,
        )

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
        return self._ask("metrics", METRICS_TIMEOUT_S)

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        """Return when every replica answers, those being replaced too.

        Raises:
            TimeoutError: one does not within `timeout_s`.
            RuntimeError: the pool was stopped.
        """
        try:
            self._ask("ready", timeout_s)
        except TimeoutError:
            table = self._ask("table", METRICS_TIMEOUT_S)
            raise TimeoutError(
                f"base-policy replicas not ready in {timeout_s} s; ready are "
                f"{sorted(table.depths)} {table.note}".rstrip()
            ) from None

    def drain(self, timeout_s: float = 120.0) -> None:
        """Answer what is queued and refuse what comes later; the replicas then end.

        Raises:
            TimeoutError: it takes longer than `timeout_s`.
            RuntimeError: the pool was stopped.
        """
        self._ask("drain", timeout_s)

    def restart(self, timeout_s: float = 600.0) -> None:
        """Replace every replica, one after the other; no request is lost.

        Raises:
            TimeoutError: it takes longer than `timeout_s`.
            RuntimeError: the pool was stopped.
        """
        self._ask("restart", timeout_s)

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

    def _ask(self, method: str, timeout_s: float) -> Any:
        """What the controller answers; while Ray restarts it, it is asked again."""
        if self._controller is None:
            raise RuntimeError("this base-policy pool was stopped: make a new one")
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return ray.get(getattr(self._controller, method).remote(), timeout=left)
            except ActorUnavailableError:
                if not left:
                    raise TimeoutError(f"the controller of {self.name} is not running") from None
                time.sleep(min(RETRY_S, left))


def location(path: str | Path | None) -> str | None:
    """What replicas on any node load from, after a check on this one."""
    checkpoint = open_checkpoint(path)
    if path is None or not Path(path).expanduser().is_dir():
        return path if path is None else str(path)
    return str(checkpoint.directory)


def check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")


def is_alive(name: str) -> bool:
    """Ray still knows the actor `name`."""
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True
