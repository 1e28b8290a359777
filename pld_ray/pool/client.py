"""The env runner's end of a base-policy pool."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pld_ray.policies import PolicyDescription, Prediction
from pld_ray.pool.exchange import Exchange, close_all
from pld_ray.pool.messages import ReplicaTable, Request
from pld_ray.pool.pending import PendingRequest


class PoolClient:
    """A `BasePolicy` that asks a pool's replicas.

    Each request goes to the less loaded of two, see `Router`. If that one is lost, late or
    draining, the request goes to another one as well, to each replica once; while none is left it
    waits for the pool to start one, until the deadline. The first answer counts. Answers do not
    depend on who gave them.

    Requests are sent, awaited and repeated by one event loop of the process, in a thread of its
    own, so one client may be used by several threads. Pickling carries names, not handles: a client
    works in any process of the cluster and survives restarts of either side.

    Args:
        controller: name of the pool's controller actor.
        table: the replicas.
        description: the policy's.
        deadline_s: seconds until a request without an answer fails.
        late_after_s: seconds after which a replica that has not answered counts as late.
        token: what replicas' sockets ask for.
        seed: of the draws in routing; an unpickled copy draws its own.
    """

    def __init__(
        self,
        controller: str,
        table: ReplicaTable,
        description: PolicyDescription,
        deadline_s: float,
        late_after_s: float,
        token: bytes,
        seed: int | None = None,
    ) -> None:
        self._controller = controller
        self._description = description
        self._limits = (deadline_s, late_after_s)
        self._token = token
        self._exchange = Exchange(controller, table, token, seed)
        close = functools.partial(close_all, self._exchange.connections)
        weakref.finalize(self._exchange, event_loop().call_soon_threadsafe, close).atexit = False
        self.action_dim = description.action_dim
        self.n_action_steps = description.n_action_steps
        self.input_features = description.input_features
        self.fingerprint = description.fingerprint
        self.chunk_size = description.chunk_size
        self.n_obs_steps = description.n_obs_steps
        self.feature_dim = description.feature_dim
        self.rtc = description.rtc

    def __reduce__(self) -> tuple[Any, ...]:
        # without the seed: copies that drew the same numbers would crowd one replica
        table = self._exchange.router.table
        arguments = (self._controller, table, self._description, *self._limits, self._token)
        return PoolClient, arguments

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """See `BasePolicy.infer`.

        Raises:
            ValueError: the observations or leftovers do not fit the policy.
            TimeoutError: no replica answered within `deadline_s`.
            ConnectionError: the pool was stopped.
            Exception: what the policy raised, if every replica failed on the request.
        """
        return self.submit(observations, tasks, env_ids, seeds, leftovers).result()

    def submit(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | Sequence[Sequence[int]] | None = None,
        leftovers: np.ndarray | None = None,
        weights: tuple[int, bool] | None = None,
    ) -> concurrent.futures.Future[Prediction]:
        """Send a request and return at once; the arrays must stay as they are until the answer.

        Args:
            weights: of a policy that learns, see `BasePolicyPool.publish`: the version to answer
                with, and whether as the clone alone.

        Raises:
            ValueError: the observations or leftovers do not fit the policy.
        """
        self._description.check(observations, tasks, leftovers)
        request = Request(
            {key: observations[key] for key in self.input_features},
            list(tasks),
            [int(i) for i in env_ids],
            None if seeds is None else np.asarray(seeds).tolist(),
            leftovers,
            weights=weights,
        )
        pending = PendingRequest(self._exchange, request, *self._limits)
        return asyncio.run_coroutine_threadsafe(pending.run(), event_loop())


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process's clients."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="base-policy-client", daemon=True).start()
    return loop
