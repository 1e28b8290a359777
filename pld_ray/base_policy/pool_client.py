"""The env runner's end of a base-policy pool."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

NAMESPACE = "pld_ray"
"""Ray namespace of the replicas' names, so that clients of any job and node find them."""

PROBE_TIMEOUT_S = 0.2  # a replica that does not tell its load by then counts as busy


@dataclasses.dataclass(frozen=True)
class PolicyDescription:
    """What every client must know of the policy without loading it; see `BasePolicy`."""

    action_dim: int
    n_action_steps: int
    input_features: dict[str, tuple[int, ...]]
    fingerprint: str


class PoolClient:
    """A `BasePolicy` that asks a pool's replicas.

    Each request goes to the less loaded of two replicas drawn at random. If that one is lost, the
    request is retried on the others, once each. Pickling carries the replicas' names, not handles,
    so a client works in any process of the cluster and survives restarts of either side.

    Args:
        names: the replicas' actor names.
        description: the policy's.
        seed: of the draw of two, on which answers do not depend; an unpickled copy draws its own.
    """

    def __init__(
        self, names: Sequence[str], description: PolicyDescription, seed: int | None = None
    ) -> None:
        self._names = list(names)
        self._description = description
        self._rng = np.random.default_rng(seed)
        self._handles: dict[str, Any] = {}
        self.action_dim = description.action_dim
        self.n_action_steps = description.n_action_steps
        self.input_features = dict(description.input_features)
        self.fingerprint = description.fingerprint

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_handles"], state["_rng"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handles = {}
        # copies that drew the same numbers would all crowd the same replica
        self._rng = np.random.default_rng()

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
            ConnectionError: no replica answered, each was tried once.
        """
        missing = sorted(set(self.input_features) - set(observations))
        if missing:
            raise ValueError(f"the base policy needs {missing}; got {sorted(observations)}")
        request = (
            {key: observations[key] for key in self.input_features},
            list(tasks),
            [int(i) for i in env_ids],
            None if seeds is None else [int(s) for s in seeds],
        )
        untried, failures = list(self._names), []
        while untried:
            name = self._less_loaded(untried)
            untried.remove(name)
            try:
                return np.array(ray.get(self._handle(name).infer.remote(*request)))
            except RayActorError as error:
                failures.append(f"{name}: {type(error).__name__}")
            except RayTaskError as error:
                raise error.cause from error  # the policy refused; another replica would too
        raise ConnectionError(
            f"no base-policy replica answered, each was tried once ({'; '.join(failures)}); Ray "
            "restarts lost replicas, unless the pool was stopped"
        )

    def _less_loaded(self, names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        drawn = [names[i] for i in self._rng.choice(len(names), size=2, replace=False)]
        loads = self._loads(drawn)
        return min(drawn, key=lambda name: loads.get(name, math.inf))

    def _loads(self, names: Sequence[str]) -> dict[str, int]:
        """Rows queued at each replica that tells; lost and stuck ones are left out."""
        probes = {}
        for name in names:
            with contextlib.suppress(RayActorError):
                probes[self._handle(name).queue_depth.remote()] = name
        loads: dict[str, int] = {}
        if probes:
            told, _ = ray.wait(list(probes), num_returns=len(probes), timeout=PROBE_TIMEOUT_S)
            for probe in told:
                with contextlib.suppress(RayActorError):
                    loads[probes[probe]] = ray.get(probe)
        return loads

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            try:
                self._handles[name] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                raise ray.exceptions.ActorDiedError() from None
        return self._handles[name]
