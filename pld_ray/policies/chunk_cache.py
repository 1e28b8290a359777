"""Plays chunks out: one open-loop chunk per environment."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pld_ray.policies.observation_history import ObservationHistory
from pld_ray.policies.protocol import BasePolicy, PolicyDescription, PolicyError, Prediction


class Prefetched(NamedTuple):
    """One row of a request that is on its way."""

    pending: Any
    row: int


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

    A policy with `rtc` (real-time chunking) is also given what is left of the chunk being played,
    in its own units: from the action of the step of the request, which is certain to be played
    before the new chunk begins, to the end of the chunk. It joins the new chunk to that one.

    Args:
        policy: the base policy.
        num_envs: N, environments are numbered 0..N-1.
        seed: stochastic policies draw a row's noise from (seed, environment, episode, chunk), or
            from what `reset` is told in place of the first three, so that it does not depend on who
            shares the batch.
        prefetch: ask for the next chunk one step ahead.

    Attributes:
        num_inferences: requests to the policy so far.
        num_rows: rows requested so far.
        features: [N, F] float32, of the chunk that each environment plays; F is 0 for policies
            without features.

    Raises:
        ValueError: `prefetch` with chunks of one action, or a policy with `rtc` without `prefetch`.
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
        if facts.rtc and not prefetch:
            raise ValueError(
                "real-time chunking continues the chunk that is being played when the next one is "
                "prefetched: set policy.prefetch=true, or policy.rtc=false"
            )
        self.policy = policy
        self.num_envs = num_envs
        self.num_inferences = 0
        self.num_rows = 0
        self.features = np.zeros((num_envs, facts.feature_dim), dtype=np.float32)
        self._facts = facts
        self._prefetch = prefetch
        self._history = ObservationHistory(facts.input_features, num_envs, facts.n_obs_steps)
        shape = (num_envs, facts.chunk_size, policy.action_dim)
        self._chunks = np.zeros(shape, dtype=np.float32)
        self._normalized = np.zeros(shape if facts.rtc else 0, dtype=np.float32)
        self._next = np.zeros(num_envs, dtype=np.int64)  # the action to play,
        self._end = np.zeros(num_envs, dtype=np.int64)  # below this one; all start used up
        self._noise: list[tuple[int, ...]] = [(seed, env) for env in range(num_envs)]
        self._episode = np.zeros(num_envs, dtype=np.int64)
        self._chunk = np.zeros(num_envs, dtype=np.int64)
        self._prefetched: dict[int, Prefetched] = {}
        self._everyone = np.arange(num_envs)

    def reset(
        self, env_ids: Sequence[int], episodes: Sequence[tuple[int, int] | None] | None = None
    ) -> None:
        """An episode starts in these environments: what is left of their chunks is dropped.

        Args:
            env_ids: environments.
            episodes: (seed, number) that the noise of each is drawn from, whatever was played
                before; those to come count on from it. None counts on.
        """
        ids = self._checked(env_ids)
        self._episode[ids] += 1
        for env, episode in zip(ids.tolist(), episodes or [None] * len(ids), strict=True):
            self._drop(env)
            if episode is not None:
                self._noise[env], self._episode[env] = episode[:1], episode[1]
        self._next[ids] = self._end[ids] = 0
        self._chunk[ids] = 0
        self._history.reset(ids)

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
            PolicyError: the policy answers with an action that is not finite.
        """
        ids = self._everyone if env_ids is None else self._checked(env_ids)
        if len(tasks) != len(ids):
            raise ValueError(f"got {len(tasks)} tasks for {len(ids)} environments")
        windows = self._history.with_newest(ids, observations)
        ran_out = self._next[ids] >= self._end[ids]
        if ran_out.any():
            self._adopt_prefetched(ids[ran_out])
            empty = np.flatnonzero(self._next[ids] >= self._end[ids])
            if len(empty):
                request = self._request(windows, tasks, ids, empty)
                self._adopt(ids[empty], self.policy.infer(**request))
                self._count(empty)
        actions = self._chunks[ids, self._next[ids]]
        if self._prefetch:
            last = np.flatnonzero(self._next[ids] + 1 >= self._end[ids])
            self._request_ahead(windows, tasks, ids, last)
        # only now: a failed inference leaves the cache as it was
        self._history.keep(ids, windows)
        self._next[ids] += 1
        return actions

    def replan(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
    ) -> np.ndarray:
        """`act` once more on the same observations, with chunks that begin with them.

        What is left of the chunks being played is dropped: somebody else has moved the arm.
        """
        ids = self._checked(env_ids)
        for env in ids.tolist():
            self._drop(env)
        self._next[ids] = self._end[ids] = 0
        self._history.forget_newest(ids)
        return self.act(observations, tasks, env_ids)

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
        if self._facts.rtc:
            leftovers = np.full((len(rows), *self._normalized.shape[1:]), np.nan, dtype=np.float32)
            for row, env in enumerate(ids[rows]):
                left = self._normalized[env, self._next[env] :]
                leftovers[row, : len(left)] = left
            request["leftovers"] = leftovers
        if hasattr(self.policy, "submit"):
            pending = self.policy.submit(**request)
        else:
            pending = concurrent.futures.Future()
            pending.set_result(self.policy.infer(**request))
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
                prediction = pending.result()
            except Exception:
                self._prefetched = {
                    e: p for e, p in self._prefetched.items() if p.pending is not pending
                }
                raise
            del self._prefetched[env]
            self._adopt(np.array([env]), prediction.rows(slice(row, row + 1)), skip=1)

    def _adopt(self, envs: np.ndarray, prediction: Prediction, skip: int = 0) -> None:
        """Begin these chunks with their action number `skip`.

        Raises:
            PolicyError: an action is not finite.
        """
        if not np.isfinite(prediction.chunks).all():
            raise PolicyError(
                "the policy answered with an action that is not finite: its weights are not, or "
                "the environment's observation is not"
            )
        self._chunks[envs] = prediction.chunks[:, : self._facts.chunk_size]
        if prediction.features is not None:
            self.features[envs] = prediction.features
        if self._facts.rtc:
            assert prediction.normalized is not None
            self._normalized[envs] = prediction.normalized[:, : self._facts.chunk_size]
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
        entropy = (*self._noise[env], int(self._episode[env]), int(self._chunk[env]))
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _checked(self, env_ids: Sequence[int]) -> np.ndarray:
        ids = np.asarray(list(env_ids), dtype=np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_envs):
            raise ValueError(f"environments are numbered 0 to {self.num_envs - 1}; got {env_ids}")
        if len(set(ids.tolist())) != len(ids):
            raise ValueError(f"an environment is named twice in {env_ids}")
        return ids
