"""A trained policy at work, alone: the environment's observations in, its actions out."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np

from pld_ray.algorithm.residual.acting import Actor
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import BASE_ACTION
from pld_ray.plugin.policy_folder import load_base, load_networks, read_settings
from pld_ray.policies import BasePolicy, ChunkCache, PolicyDescription
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.policies.spaces import make_spaces
from pld_ray.rollout.vector_env import add_base_policy, with_base_policy


class ActingPolicy:
    """Base + residual as one policy of N environments, deterministic.

    Row i of every call is environment i: of each it keeps the chunk of the base policy that is
    being played. The first call says how many environments there are and begins an episode in
    each; later ones say with `episode_start` where one begins. So of the same observations it makes
    the actions of `pld-ray eval` with one environment a runner, bit for bit, whoever shares the
    call.

    Args:
        base_policy: the frozen policy, or a learnt one that plays chunks.
        networks: the residual's; None plays `base_policy` alone.
        observations, actions: the environment's spaces.
        prefetch: see `ChunkCache`.
        task: instruction in words where a call gives none.

    Attributes:
        inputs: observation -> shape of the batch, whose first dimension is -1.
    """

    def __init__(
        self,
        base_policy: BasePolicy,
        networks: ResidualNetworks | None,
        observations: gym.spaces.Dict,
        actions: gym.spaces.Box,
        prefetch: bool = False,
        task: str = "",
    ) -> None:
        self.base_policy, self._prefetch, self._task = base_policy, prefetch, task
        self._actor = None if networks is None else Actor(networks)
        self._spaces, self._actions = observations.spaces, actions
        self._chunks: ChunkCache | None = None
        self._begun = np.zeros(0, np.int64)  # episodes of each environment
        self.inputs = {key: (-1, *(space.shape or ())) for key, space in self._spaces.items()}

    def reset(self) -> None:
        """The next call begins an episode in each environment, of which there may be another
        number."""
        self._chunks = None

    def predict(
        self,
        observations: Mapping[str, np.ndarray],
        episode_start: Sequence[bool] | np.ndarray | None = None,
        tasks: Sequence[str] | None = None,
    ) -> np.ndarray:
        """Composed and clipped actions [N, A] float32, one step of each environment.

        Args:
            observations: the environment's columns, [N, ...] each.
            episode_start: [N], true where this observation is an episode's first; None is nowhere,
                but in the first call everywhere.
            tasks: N instructions in words; none, or an empty one, is the one that was trained.

        Raises:
            ValueError: an observation is missing or has another shape, or another number of rows
                than there are environments.
        """
        batch = {key: self._column(observations, key) for key in self._spaces}
        n = len(next(iter(batch.values())))
        starts = np.zeros(n, bool) if episode_start is None else np.asarray(episode_start, bool)
        if starts.shape != (n,) or any(len(column) != n for column in batch.values()):
            raise ValueError(
                f"observations and episode_start must have the same number of rows, one for each "
                f"environment; {next(iter(batch))!r} has {n}"
            )
        if self._chunks is None or (starts.all() and self._chunks.num_envs != n):
            self._chunks = ChunkCache(self.base_policy, n, prefetch=self._prefetch)
            self._begun = np.zeros(n, np.int64)
            starts = np.ones(n, bool)
        if self._chunks.num_envs != n:
            raise ValueError(
                f"got {n} rows, but there are {self._chunks.num_envs} environments: call reset() "
                "(or set episode_start everywhere) before their number changes"
            )
        if starts.any():
            self._begin(np.flatnonzero(starts))
        instructions = [task or self._task for task in tasks or [""] * n]
        add_base_policy(batch, self._chunks, instructions, self._actions)
        if self._actor is None:
            return batch[BASE_ACTION]
        # one by one: a product's last bits depend on its height, and contacts make much of them
        rows = ({key: column[i : i + 1] for key, column in batch.items()} for i in range(n))
        return np.concatenate([self._actor.act(row)[0] for row in rows])

    def _begin(self, env_ids: np.ndarray) -> None:
        """Episodes begin. Environment i plays the init states i, i + N, ..., and a policy that
        draws noise draws what it draws there in `pld-ray eval`."""
        assert self._chunks is not None
        states = env_ids + self._chunks.num_envs * self._begun[env_ids]
        self._chunks.reset(env_ids.tolist(), [(0, state) for state in states.tolist()])
        self._begun[env_ids] += 1

    def _column(self, observations: Mapping[str, np.ndarray], key: str) -> np.ndarray:
        if key not in observations:
            raise ValueError(f"the policy needs {', '.join(self._spaces)}; {key} is missing")
        column = np.ascontiguousarray(observations[key], dtype=self._spaces[key].dtype)
        if column.shape[1:] != self._spaces[key].shape or not len(column):
            raise ValueError(f"{key} has shape {column.shape}; the policy needs {self.inputs[key]}")
        return column


def load_residual(folder: pathlib.Path, device: str = "cpu") -> ActingPolicy:
    """Base + residual of a folder that `write_residual` wrote, ready to act.

    Args:
        folder: of the policy.
        device: of the base policy; the residual is computed on the CPU, as in training's runners.

    Raises:
        ConfigError: no policy of this format, a damaged one, or the base policy has changed.
        FileNotFoundError: a file is missing.
    """
    settings = read_settings(folder)
    observations, actions = make_spaces(settings["observations"], settings["actions"])
    base = load_base(folder, settings, actions, device)
    spaces = with_base_policy(base, observations, actions)
    networks = load_networks(folder, settings, spaces, actions)
    prefetch = bool(settings["base_policy"].get("prefetch"))
    return ActingPolicy(base, networks, observations, actions, prefetch, settings["task"])


def load_chunked(
    folder: pathlib.Path, n_action_steps: int | None = None, device: str = "cpu"
) -> ActingPolicy:
    """Q-chunking's policy of a folder that `exported.write_policy` wrote, ready to act.

    Args:
        folder: of the policy.
        n_action_steps: actions of a chunk that are played; None is the folder's own number.
        device: of its networks.

    Raises:
        FileNotFoundError, ValueError: see `load_policy`.
    """
    from pld_ray.policies.exported import load_policy

    policy = load_policy(open_checkpoint(folder), device, n_action_steps)
    rows = PolicyDescription.of(policy).zeros(1)
    observations = gym.spaces.Dict({key: unbounded(row[0]) for key, row in rows.items()})
    actions = unbounded(np.zeros(policy.action_dim, np.float32))  # its networks know the bounds
    return ActingPolicy(policy, None, observations, actions)


def unbounded(example: np.ndarray) -> gym.spaces.Box:
    """All that an array's type can hold, in its shape."""
    if example.dtype == np.uint8:
        return gym.spaces.Box(0, 255, example.shape, np.uint8)
    return gym.spaces.Box(-np.inf, np.inf, example.shape, np.float32)
