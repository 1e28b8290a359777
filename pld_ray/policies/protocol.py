"""What a frozen base policy must answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pld_ray.policies.leftovers import Leftovers, checked

BATCH_ROWS = 8
"""Default rows of every network call, see `LeRobotBasePolicy`."""


@runtime_checkable
class BasePolicy(Protocol):
    """A frozen policy that maps observations to chunks of actions.

    It keeps no state between calls: a row's answer depends on that row's observation, task, seed
    and leftover alone, bit for bit, whoever shares the batch. Who plays which chunk is
    `ChunkCache`'s.

    Attributes:
        action_dim: A, length of one action.
        n_action_steps: T, how many actions of a chunk are played before the policy is asked again.
        input_features: observation key -> shape of one row, as declared by the checkpoint (images
            channel-first there, given channel-last uint8).
        fingerprint: sha256 over configuration, weights and processors; equal fingerprints mean
            equal answers on equal hardware.

    A policy may also have these, which callers read through `PolicyDescription.of`:

    * `chunk_size` (default `n_action_steps`): actions per row that `infer` returns. Those beyond
      `n_action_steps` are played by prefetched chunks only, see `ChunkCache`.
    * `n_obs_steps` (default 1): if above 1, each observation is [B, n_obs_steps, ...], oldest
      first.
    * `feature_dim` (default 0): F. If above 0, `infer_with_features` takes what `infer` takes and
      returns the chunks and features [B, F] float32 from the same forward pass.
    * `rtc` (default False): real-time chunking. If True, `infer_with_leftovers` takes what `infer`
      takes and `leftovers` (one per row or None, see the module of that name), and returns a
      `Prediction` with `normalized`.
    * `batch_rows`: rows of every network call, for a policy that pads and splits to one shape.
    * `check(observations, tasks)`: raises ValueError for a request that does not fit, so that it
      can be refused before it joins a batch.
    * `submit`: takes what `infer` takes, with `rtc` also `leftovers`, and returns at once;
      `.result()` of what it returns is a `Prediction`, `.cancel()` says that nobody will ask for
      it.
    """

    action_dim: int
    n_action_steps: int
    input_features: dict[str, tuple[int, ...]]
    fingerprint: str

    def reset(self, env_ids: Sequence[int]) -> None:
        """An episode starts in these environments. Stateless policies have nothing to do."""

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
    ) -> np.ndarray:
        """One chunk of actions per row.

        Args:
            observations: key -> [B, ...]; keys that the policy does not use are ignored.
            tasks: B instructions in words.
            env_ids: B environment numbers, for policies that key anything by environment.
            seeds: B integers; a stochastic policy draws row i's noise from seed i alone.

        Returns:
            [B, T, A] float32 in environment units (T is `chunk_size` if the policy has one).
        """
        ...


class Prediction(NamedTuple):
    """A policy's answer to one request of B rows, all from one forward pass."""

    chunks: np.ndarray
    """[B, T, A] float32 in environment units."""
    features: np.ndarray | None = None
    """[B, F] float32, if the policy has features."""
    normalized: np.ndarray | None = None
    """The chunks [B, T, A] float32 in the policy's own units, of which leftovers are cut; of
    policies with `rtc`."""

    def rows(self, rows: slice) -> Prediction:
        """The answer to some of the rows."""
        optional = (self.features, self.normalized)
        features, normalized = (None if part is None else part[rows] for part in optional)
        return Prediction(self.chunks[rows], features, normalized)


@dataclasses.dataclass(frozen=True)
class PolicyDescription:
    """The facts of a policy that others must know without loading it; see `BasePolicy`."""

    action_dim: int
    n_action_steps: int
    input_features: dict[str, tuple[int, ...]]
    fingerprint: str
    chunk_size: int
    n_obs_steps: int = 1
    feature_dim: int = 0
    batch_rows: int | None = None
    rtc: bool = False

    @classmethod
    def of(cls, policy: BasePolicy) -> PolicyDescription:
        """The description of `policy`, with the defaults of what it does not have."""
        return cls(
            action_dim=policy.action_dim,
            n_action_steps=policy.n_action_steps,
            input_features={key: tuple(shape) for key, shape in policy.input_features.items()},
            fingerprint=policy.fingerprint,
            chunk_size=int(getattr(policy, "chunk_size", policy.n_action_steps)),
            n_obs_steps=int(getattr(policy, "n_obs_steps", 1)),
            feature_dim=int(getattr(policy, "feature_dim", 0)),
            batch_rows=getattr(policy, "batch_rows", None),
            rtc=bool(getattr(policy, "rtc", False)),
        )

    def zeros(self, rows: int) -> dict[str, np.ndarray]:
        """Observations [rows, ...] of zeros in the shapes and types that the policy takes."""
        window = () if self.n_obs_steps == 1 else (self.n_obs_steps,)
        return {
            key: np.zeros((rows, *window, *row_shape(key, shape)), dtype=row_dtype(key, shape))
            for key, shape in self.input_features.items()
        }

    def check(self, observations: Mapping[str, np.ndarray], tasks: Sequence[str]) -> int:
        """The number of rows of a request with every needed observation, one per task.

        Raises:
            ValueError: an observation is missing, or has another number of rows than `tasks`.
        """
        missing = sorted(set(self.input_features) - set(observations))
        if missing:
            raise ValueError(f"the base policy needs {missing}; got {sorted(observations)}")
        for key in self.input_features:
            if np.shape(observations[key])[:1] != (len(tasks),):
                raise ValueError(
                    f"observation {key!r} has shape {np.shape(observations[key])}; expected "
                    f"{len(tasks)} rows, one for each task"
                )
        return len(tasks)

    def check_leftovers(
        self, leftovers: Leftovers | None, num_rows: int
    ) -> list[np.ndarray | None] | None:
        """The leftovers of a request as float32; None if no row has one.

        Raises:
            ValueError: the policy takes none, or they do not fit.
        """
        if leftovers is not None and not self.rtc:
            raise ValueError(
                "this base policy takes no leftovers: load it with rtc=True (policy.rtc=true), or "
                "give none"
            )
        return checked(leftovers, num_rows, self.chunk_size, self.action_dim)


def infer(policy: BasePolicy, **request: Any) -> Prediction:
    """The answer to one `BasePolicy.infer` request, with all that the policy has to tell."""
    if getattr(policy, "rtc", False):
        return Prediction(*policy.infer_with_leftovers(**request))  # type: ignore[attr-defined]
    if getattr(policy, "feature_dim", 0) > 0:
        return Prediction(*policy.infer_with_features(**request))  # type: ignore[attr-defined]
    return Prediction(policy.infer(**request))


def is_image(key: str, shape: tuple[int, ...]) -> bool:
    """LeRobot's convention: three dimensions under `observation.image...`."""
    return key.startswith("observation.image") and len(shape) == 3


def row_shape(key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """One row as environments give it: images are declared [C, H, W] and given [H, W, C]."""
    return (*shape[1:], shape[0]) if is_image(key, shape) else tuple(shape)


def row_dtype(key: str, shape: tuple[int, ...]) -> type[np.generic]:
    return np.uint8 if is_image(key, shape) else np.float32
