"""Base-policy replicas as Ray actors, shared by many env runners."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from pld_ray.base_policy.batching import Batcher
from pld_ray.base_policy.checkpoint import open_checkpoint
from pld_ray.base_policy.pool_client import NAMESPACE, PolicyDescription, PoolClient
from pld_ray.base_policy.protocol import BATCH_ROWS

__all__ = ["BasePolicyPool", "PoolClient"]

STOP_TIMEOUT_S = 10.0


class Replica:
    """One copy of the policy behind a batching queue. Runs as an async Ray actor."""

    def __init__(
        self, path: str, device: str, batch_rows: int, max_batch_size: int, max_wait_ms: float
    ) -> None:
        # here, so that a driver and its clients are spared these imports
        import torch

        from pld_ray.base_policy.lerobot_adapter import LeRobotBasePolicy

        torch.set_num_threads(1)
        self._policy = LeRobotBasePolicy(open_checkpoint(path), device, batch_rows)
        self._batcher = Batcher(self._policy.infer, max_batch_size, max_wait_ms)

    async def describe(self) -> PolicyDescription:
        policy = self._policy
        return PolicyDescription(
            policy.action_dim, policy.n_action_steps, policy.input_features, policy.fingerprint
        )

    async def queue_depth(self) -> int:
        return self._batcher.queue_depth

    async def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: list[str],
        env_ids: list[int],
        seeds: list[int] | None,
    ) -> np.ndarray:
        self._policy.check(observations, tasks)  # a bad request must not spoil its batch
        return await self._batcher.submit(observations, tasks, env_ids, seeds)

    async def metrics(self) -> dict[str, Any]:
        batcher = self._batcher
        milliseconds = 1000.0 * np.asarray(batcher.latencies or [np.nan])
        return {
            "pid": os.getpid(),
            "queue_depth": batcher.queue_depth,
            "batch_sizes": dict(batcher.batch_sizes),
            "latency_ms": {f"p{q}": float(np.percentile(milliseconds, q)) for q in (50, 90, 99)},
        }


class BasePolicyPool:
    """R replicas of one base policy, restarted by Ray when they die.

    Args:
        path: LeRobot pretrained directory, readable on every node; None is the embedded policy.
        num_replicas: R.
        max_batch_size: rows that a replica gathers at most; a multiple of `batch_rows` wastes none.
        max_wait_ms: how long the first request of a batch waits for company.
        num_cpus: CPUs reserved by each replica, may be fractional.
        num_gpus: GPUs reserved by each replica, may be fractional.
        device: torch device of the replicas; default "cuda" when `num_gpus` > 0, else "cpu".
        batch_rows: rows of each network call, see `LeRobotBasePolicy`; answers equal an inline
            policy's bit for bit if it has the same `batch_rows` on the same kind of device.

    Raises:
        FileNotFoundError, ValueError: the checkpoint is not usable (checked before any actor
            starts), or a setting is out of range.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        num_replicas: int = 1,
        max_batch_size: int = 32,
        max_wait_ms: float = 2.0,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        device: str | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        for name, value, low in (
            ("num_replicas", num_replicas, 1),
            ("max_batch_size", max_batch_size, 1),
            ("max_wait_ms", max_wait_ms, 0),
        ):
            if value < low:
                raise ValueError(f"{name} must be at least {low}, not {value}")
        directory = str(open_checkpoint(path).directory)
        device = device or ("cuda" if num_gpus > 0 else "cpu")
        pool_id = uuid.uuid4().hex[:8]
        self._names = [f"base_policy_{pool_id}_{i}" for i in range(num_replicas)]
        actor_class = ray.remote(Replica)
        self._replicas = [
            actor_class.options(
                name=name,
                namespace=NAMESPACE,
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                max_restarts=-1,
                max_concurrency=1000,  # requests that may wait in one replica
            ).remote(directory, device, batch_rows, max_batch_size, max_wait_ms)
            for name in self._names
        ]
        try:
            self._description = ray.get([r.describe.remote() for r in self._replicas])[0]
        except RayActorError as error:
            self.stop()
            raise RuntimeError(f"a base-policy replica did not start: {error}") from error

    def client(self, seed: int | None = None) -> PoolClient:
        """A picklable `BasePolicy` that asks these replicas; `seed` decides whom it asks first."""
        return PoolClient(self._names, self._description, seed)

    def metrics(self) -> dict[str, Any]:
        """Load of the pool.

        Returns:
            "replicas": per replica "pid", "queue_depth" (rows), "batch_sizes" (rows -> batches)
            and "latency_ms" ("p50", "p90", "p99" of the last 1000 requests, queue included; nan
            before the first), or None for one that is being restarted; "queue_depth" and
            "batch_sizes": sums over them.
        """
        replicas: list[dict[str, Any] | None] = []
        for replica in self._replicas:
            try:
                replicas.append(ray.get(replica.metrics.remote(), timeout=5.0))
            except (RayActorError, GetTimeoutError):
                replicas.append(None)
        alive = [r for r in replicas if r is not None]
        batch_sizes: Counter[int] = Counter()
        for r in alive:
            batch_sizes.update(r["batch_sizes"])
        return {
            "replicas": replicas,
            "queue_depth": sum(r["queue_depth"] for r in alive),
            "batch_sizes": dict(batch_sizes),
        }

    def wait_until_ready(self, timeout_s: float = 120.0) -> None:
        """Return when every replica answers, those being restarted too.

        Raises:
            TimeoutError: one does not within `timeout_s`; the message names it.
            RuntimeError: the pool was stopped.
        """
        if not self._replicas:
            raise RuntimeError("this base-policy pool was stopped: make a new one")
        deadline = time.monotonic() + timeout_s
        for name, replica in zip(self._names, self._replicas, strict=True):
            while not answers(replica, deadline - time.monotonic()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"base-policy replica {name} not ready in {timeout_s} s")
                time.sleep(0.1)  # Ray answers at once while it restarts an actor

    def stop(self) -> None:
        """End the replicas for good and wait until Ray has forgotten them; safe to call again."""
        for replica in self._replicas:
            ray.kill(replica, no_restart=True)
        self._replicas = []
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (left := [n for n in self._names if is_alive(n)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            raise TimeoutError(f"base-policy replicas {left} did not stop in {STOP_TIMEOUT_S} s")


def answers(replica: Any, timeout_s: float) -> bool:
    """The replica tells its load within `timeout_s`."""
    try:
        ray.get(replica.queue_depth.remote(), timeout=max(0.0, timeout_s))
    except (RayActorError, GetTimeoutError):
        return False
    return True


def is_alive(name: str) -> bool:
    """Ray still knows the replica `name`."""
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True
