"""Plays chunks out: one open-loop chunk per environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pld_ray.base_policy.protocol import BasePolicy


class ChunkCache:
    """Turns a policy that answers chunks into one action per environment and step.

    Each environment plays the `n_action_steps` actions of its chunk open loop; a step inside a
    chunk costs no inference, and the environments whose chunk ran out share one batched call.

    Args:
        policy: the base policy.
        num_envs: N, environments are numbered 0..N-1.
        seed: stochastic policies draw a row's noise from (seed, environment, episode, chunk), so
            that it does not depend on who shares the batch.

    Attributes:
        num_inferences: calls of `policy.infer` so far.
        num_rows: rows inferred so far.
    """

    def __init__(self, policy: BasePolicy, num_envs: int, seed: int = 0) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        self.policy = policy
        self.num_envs = num_envs
        self.num_inferences = 0
        self.num_rows = 0
        self._seed = seed
        self._chunks = np.zeros(
            (num_envs, policy.n_action_steps, policy.action_dim), dtype=np.float32
        )
        self._played = np.full(num_envs, policy.n_action_steps)  # all chunks start used up
        self._episode = np.zeros(num_envs, dtype=np.int64)
        self._chunk = np.zeros(num_envs, dtype=np.int64)

    def reset(self, env_ids: Sequence[int]) -> None:
        """An episode starts in these environments: what is left of their chunks is dropped."""
        ids = self._checked(env_ids)
        self._played[ids] = self.policy.n_action_steps
        self._episode[ids] += 1
        self._chunk[ids] = 0
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
            ValueError: an unknown or repeated environment, or tasks of another number.
        """
        ids = self._checked(range(self.num_envs) if env_ids is None else env_ids)
        if len(tasks) != len(ids):
            raise ValueError(f"got {len(tasks)} tasks for {len(ids)} environments")
        ran_out = np.flatnonzero(self._played[ids] >= self.policy.n_action_steps)
        if len(ran_out):
            self._refill(observations, tasks, ids, ran_out)
        actions = self._chunks[ids, self._played[ids]]
        self._played[ids] += 1
        return actions

    def _refill(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        ids: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        envs = ids[rows]
        chunks = self.policy.infer(
            {key: observations[key][rows] for key in self.policy.input_features},
            [tasks[i] for i in rows],
            envs.tolist(),
            [self._noise_seed(i) for i in envs],
        )
        # written only after the call: a failed inference leaves the cache as it was
        self._chunks[envs] = chunks[:, : self.policy.n_action_steps]
        self._played[envs] = 0
        self._chunk[envs] += 1
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
