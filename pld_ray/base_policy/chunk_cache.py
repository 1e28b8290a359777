"""Plays chunks out: one open-loop chunk per environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pld_ray.base_policy.observation_history import ObservationHistory
from pld_ray.base_policy.protocol import BasePolicy, PolicyDescription, infer


class Prefetched(NamedTuple):
    """One row of a request that is on its way."""

    pending: Any
    row: int


class Computed:
    """A request to a policy that can only compute there and then."""

    def __init__(self, output: tuple[np.ndarray, np.ndarray | None]) -> None:
        self._output = output

    def result(self) -> tuple[np.ndarray, np.ndarray | None]:
        return self._output

    def cancel(self) -> None:
        pass


class ChunkCache:
    """Turns a policy that answers chunks into one action per environment and step.

    Each environment plays the `n_action_steps` actions of its chunk open loop; a step inside a
    chunk costs no inference, and the environments whose chunk ran out share one batched call.

    With `prefetch` the next chunk is requested while the last action of a chunk is played, from
    the observation of that step, so that inference overlaps simulation if the policy has `submit`.
    Of a prefetched chunk the first action, the one for the step that was already played, is
    dropped: it is played from its second action on, `n_action_steps` of them if the policy's
    `chunk_size` is larger, else one fewer. Its observation is one step older than without
    prefetch, so the actions differ from those of a run without; they do not depend on whether the
    policy has `submit`, nor on how long an answer takes. The first chunk of an episode is never
    prefetched.

    Args:
        policy: the base policy.
        num_envs: N, environments are numbered 0..N-1.
        seed: stochastic policies draw a row's noise from (seed, environment, episode, chunk), so
            that it does not depend on who shares the batch.
        prefetch: ask for the next chunk one step ahead.

    Attributes:
        num_inferences: requests to the policy so far.
        num_rows: rows requested so far.
        features: [N, F] float32, of the chunk that each environment plays; F is 0 for policies
            without features.

    Raises:
        ValueError: `prefetch` with chunks of one action.
    """

    def __init__(
        self, policy: BasePolicy, num_envs: int, seed: int = 0, prefetch: bool = False
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        facts = PolicyDescription.of(policy)
        if prefetch and facts.chunk_size < 2:
            raise ValueError(
                "prefetch drops the first action of a chunk, and the base policy's have no other: "
                "switch it off, or use a policy with chunk_size above 1"
            )
        self.policy = policy
        self.num_envs = num_envs
        self.num_inferences = 0
        self.num_rows = 0
        self.features = np.zeros((num_envs, facts.feature_dim), dtype=np.float32)
        self._facts = facts
        self._seed = seed
        self._prefetch = prefetch
        self._history = ObservationHistory(facts.input_features, num_envs, facts.n_obs_steps)
        shape = (num_envs, facts.chunk_size, policy.action_dim)
        self._chunks = np.zeros(shape, dtype=np.float32)
        self._next = np.zeros(num_envs, dtype=np.int64)  # the action to play,
        self._end = np.zeros(num_envs, dtype=np.int64)  # below this one; all start used up
        self._episode = np.zeros(num_envs, dtype=np.int64)
        self._chunk = np.zeros(num_envs, dtype=np.int64)
        self._prefetched: dict[int, Prefetched] = {}

    def reset(self, env_ids: Sequence[int]) -> None:
        """An episode starts in these environments: what is left of their chunks is dropped."""
        ids = self._checked(env_ids)
        for env in ids.tolist():
            self._drop(env)
        self._next[ids] = self._end[ids] = 0
        self._episode[ids] += 1
        self._chunk[ids] = 0
        self._history.reset(ids)
        self.policy.reset(ids.tolist())

    def act(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int] | None = None,
    ) -> np.ndarray:
        """The next base action of each environment.

        Args:
            observations: key -> [N, ...], row i belongs to `env_ids[i]`.
            tasks: N instructions.
            env_ids: N distinct environments; default all, in order.

        Returns:
            [N, A] float32 in environment units.

        Raises:
            ValueError: an unknown or repeated environment, tasks of another number, or an
                observation that the policy needs is missing.
        """
        ids = self._checked(range(self.num_envs) if env_ids is None else env_ids)
        if len(tasks) != len(ids):
            raise ValueError(f"got {len(tasks)} tasks for {len(ids)} environments")
        windows = self._history.with_newest(ids, observations)
        ran_out = np.flatnonzero(self._next[ids] >= self._end[ids])
        self._adopt_prefetched(ids[ran_out])
        empty = np.flatnonzero(self._next[ids] >= self._end[ids])
        if len(empty):
            self._adopt(
                ids[empty], *infer(self.policy, **self._request(windows, tasks, ids, empty))
            )
            self._count(empty)
        actions = self._chunks[ids, self._next[ids]]
        if self._prefetch:
            last = np.flatnonzero(self._next[ids] + 1 >= self._end[ids])
            self._request_ahead(windows, tasks, ids, last)
        # only now: a failed inference leaves the cache as it was
        self._history.keep(ids, windows)
        self._next[ids] += 1
        return actions

    def _request(
        self,
        windows: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        ids: np.ndarray,
        rows: np.ndarray,
    ) -> dict[str, Any]:
        """The arguments of `BasePolicy.infer` for some rows."""
        return {
            "observations": {key: window[rows] for key, window in windows.items()},
            "tasks": [tasks[i] for i in rows],
            "env_ids": ids[rows].tolist(),
            "seeds": [self._noise_seed(env) for env in ids[rows]],
        }

    def _request_ahead(
        self,
        windows: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        ids: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        rows = rows[[env not in self._prefetched for env in ids[rows].tolist()]]
        if not len(rows):
            return
        request = self._request(windows, tasks, ids, rows)
        submit = getattr(self.policy, "submit", None)
        pending = submit(**request) if submit else Computed(infer(self.policy, **request))
        for row, env in enumerate(ids[rows].tolist()):
            self._prefetched[env] = Prefetched(pending, row)
        self._count(rows)

    def _adopt_prefetched(self, envs: np.ndarray) -> None:
        """Begin the chunks that were requested for these environments one step ago."""
        for env in envs.tolist():
            if env not in self._prefetched:
                continue
            pending, row = self._prefetched[env]
            try:
                chunks, features = pending.result()
            except Exception:
                self._prefetched = {
                    e: p for e, p in self._prefetched.items() if p.pending is not pending
                }
                raise
            del self._prefetched[env]
            own = None if features is None else features[row : row + 1]
            self._adopt(np.array([env]), chunks[row : row + 1], own, skip=1)

    def _adopt(
        self, envs: np.ndarray, chunks: np.ndarray, features: np.ndarray | None, skip: int = 0
    ) -> None:
        """Begin these chunks [B, T, A] with their action number `skip`."""
        self._chunks[envs] = chunks[:, : self._facts.chunk_size]
        if features is not None:
            self.features[envs] = features
        self._next[envs] = skip
        self._end[envs] = min(skip + self._facts.n_action_steps, self._facts.chunk_size)
        self._chunk[envs] += 1

    def _drop(self, env: int) -> None:
        """Forget the chunk that was requested ahead; nobody waits for it if it was the last row."""
        dropped = self._prefetched.pop(env, None)
        if dropped and all(p.pending is not dropped.pending for p in self._prefetched.values()):
            dropped.pending.cancel()

    def _count(self, rows: np.ndarray) -> None:
        self.num_inferences += 1
        self.num_rows += len(rows)

    def _noise_seed(self, env: int) -> int:
        entropy = (self._seed, int(env), int(self._episode[env]), int(self._chunk[env]))
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _checked(self, env_ids: Sequence[int]) -> np.ndarray:
        ids = np.asarray(list(env_ids), dtype=np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_envs):
            raise ValueError(f"environments are numbered 0 to {self.num_envs - 1}; got {env_ids}")
        if len(set(ids.tolist())) != len(ids):
            raise ValueError(f"an environment is named twice in {env_ids}")
        return ids
