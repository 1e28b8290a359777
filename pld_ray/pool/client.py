"""The env runner's end of a base-policy pool."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from pld_ray.policies.leftovers import Leftovers
from pld_ray.policies.pending_chunks import PendingChunks, Request
from pld_ray.policies.protocol import PolicyDescription, Prediction
from pld_ray.pool.replica import Answer, Ticket
from pld_ray.pool.replica_calls import ActorCall, Call, Connection, Lost
from pld_ray.pool.routing import ReplicaTable, Router

NAMESPACE = "pld_ray"
"""Ray namespace of the actors' names, so that clients of any job and node find them."""

LOOK_S, LONGEST_LOOK_S = 0.2, 5.0  # so long a look for replicas may take


class PoolClient:
    """A `BasePolicy` that asks a pool's replicas.

    Each request goes to the less loaded of two, see `Router`. If that one is lost, late or
    draining, the request goes to another one as well, to each replica once; while none is left it
    waits for the pool to start one, until the deadline. The first answer counts. Answers do not
    depend on who gave them.

    Pickling carries names, not handles, so a client works in any process of the cluster and
    survives restarts of either side. One client may be used by several threads.

    Args:
        controller: name of the pool's controller actor.
        table: the replicas.
        description: the policy's.
        deadline_s: seconds until a request without an answer fails.
        late_after_s: seconds after which a replica that has not answered counts as late.
        token: what replicas' sockets ask for; empty if they have none.
        seed: of the draws in routing; an unpickled copy draws its own.
    """

    def __init__(
        self,
        controller: str,
        table: ReplicaTable,
        description: PolicyDescription,
        deadline_s: float,
        late_after_s: float,
        token: bytes = b"",
        seed: int | None = None,
    ) -> None:
        self._controller = controller
        self._description = description
        self._deadline_s = deadline_s
        self._late_after_s = late_after_s
        self._token = token
        self._begin(table, seed)
        self.action_dim = description.action_dim
        self.n_action_steps = description.n_action_steps
        self.input_features = dict(description.input_features)
        self.fingerprint = description.fingerprint
        self.chunk_size = description.chunk_size
        self.n_obs_steps = description.n_obs_steps
        self.feature_dim = description.feature_dim
        self.rtc = description.rtc

    def _begin(self, table: ReplicaTable, seed: int | None) -> None:
        """What belongs to this process."""
        self._router = Router(table, np.random.default_rng(seed))
        self._name = uuid.uuid4().hex[:12]
        self._handles: dict[str, Any] = {}
        self._connections: dict[str, Connection | None] = {}  # None: cannot be reached
        self._missed = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_table": self._router.table}
        for name in ("_router", "_name", "_handles", "_connections", "_missed", "_lock"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        table = state.pop("_table")
        self.__dict__.update(state)
        self._begin(table, seed=None)  # copies that drew the same numbers would crowd one replica

    def reset(self, env_ids: Sequence[int]) -> None:
        """The replicas keep nothing between calls."""

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> np.ndarray:
        """See `BasePolicy.infer`.

        Raises:
            ValueError: the observations do not fit the policy.
            TimeoutError: no replica answered within `deadline_s`.
            ConnectionError: the pool was stopped or drains.
        """
        return self.infer_with_features(observations, tasks, env_ids, seeds)[0]

    def infer_with_features(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """As `infer`, with the features [B, F] of the same forward pass if the policy has them."""
        return self.submit(observations, tasks, env_ids, seeds).result()[:2]

    def infer_with_leftovers(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: Leftovers | None = None,
    ) -> Prediction:
        """As `infer`, guided by leftovers if the policy has `rtc`, with all that one pass gives."""
        return self.submit(observations, tasks, env_ids, seeds, leftovers).result()

    def submit(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: Leftovers | None = None,
    ) -> PendingChunks:
        """Send a request and return at once; see `PendingChunks.result`."""
        self._description.check(observations, tasks)
        leftovers = self._description.check_leftovers(leftovers, len(tasks))
        request = (
            {key: observations[key] for key in self.input_features},
            list(tasks),
            [int(i) for i in env_ids],
            None if seeds is None else [int(s) for s in seeds],
            leftovers,
        )
        return PendingChunks(self, request, self._deadline_s, self._late_after_s)

    # --- what a pending request needs ------------------------------------------------------------

    def choose(self, avoid: Sequence[str], rows: int) -> str | None:
        """A replica that is none of `avoid`, on which a request of `rows` rows is booked."""
        with self._lock:
            name = self._router.choose(avoid)
            if name is not None:
                self._router.sent(name, rows)
        return name

    def send(self, name: str, request: Request, attempt: int, expires_in_s: float) -> Call:
        """Ask the chosen replica.

        Raises:
            Lost: it has gone.
        """
        missed, self._missed = self._missed, 0
        caller = f"{self._name}-{threading.get_ident()}"
        ticket = Ticket(caller, expires_in_s, attempt, missed, self._router.table.version)
        message = (*request, tuple(ticket))
        connection = self._connection(name)
        if connection is not None:
            return connection.ask(message)
        return ActorCall(self._handle(name), message)

    def settle(self, name: str, rows: int, answer: Answer) -> None:
        """A request booked on `name` was answered."""
        with self._lock:
            self._router.answered(name, rows, answer.other_rows)
            self._update(answer.table)

    def release(self, name: str, rows: int) -> None:
        """A request booked on `name` is not waited for any more."""
        with self._lock:
            self._router.released(name, rows)

    def suspect(self, name: str) -> None:
        """`name` was lost or late."""
        with self._lock:
            self._router.suspect(name)

    def forget(self, name: str) -> None:
        """What is known of the way to `name` is of no use any more."""
        with self._lock:
            self._forget(name)

    def missed_deadline(self) -> None:
        self._missed += 1

    def look_for_replicas(self, timeout_s: float) -> ReplicaTable:
        """The controller's table.

        Raises:
            ConnectionError: there is no such pool any more, or it takes no requests.
        """
        try:
            controller = ray.get_actor(self._controller, namespace=NAMESPACE)
        except ValueError:
            raise ConnectionError(
                "no base-policy replica answered: the pool was stopped, or the driver that made it "
                "has ended"
            ) from None
        with contextlib.suppress(RayError):  # it is being restarted, or is slow: look again
            limit = min(max(timeout_s, LOOK_S), LONGEST_LOOK_S)
            table = ray.get(controller.table.remote(), timeout=limit)
            with self._lock:
                self._update(table)
        table = self._router.table
        if not table.accepting:
            raise ConnectionError(f"no base-policy replica answered: {table.note}")
        return table

    def _update(self, table: ReplicaTable | None) -> None:
        self._router.update(table)
        for name in {*self._handles, *self._connections} - set(self._router.table.depths):
            if self._router.is_idle(name):  # else it may be draining, and answer yet
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._handles.pop(name, None)
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def _connection(self, name: str) -> Connection | None:
        """The socket to a replica; None if it has none or it cannot be reached from here."""
        with self._lock:
            if name not in self._connections:
                endpoint = self._router.table.endpoints.get(name)
                connection = None
                if endpoint is not None and self._token:
                    with contextlib.suppress(OSError, Lost):
                        connection = Connection(endpoint, self._token)
                self._connections[name] = connection
            return self._connections[name]

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            try:
                self._handles[name] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise Lost("its actor has ended") from None
        return self._handles[name]
