"""What a frozen base policy must answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from pld_ray.errors import UserError
from pld_ray.policies.lerobot_names import NamedFeatures, missing_observations

BATCH_ROWS = 8
"""Default rows of every network call, see `LeRobotBasePolicy`."""


class PolicyError(UserError, RuntimeError):
    """A policy answers what cannot be played."""


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
        return Prediction(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


@runtime_checkable
class BasePolicy(Protocol):
    """A frozen policy that maps observations to chunks of actions.

    It keeps no state between calls: a row's answer depends on that row's observation, task, seed
    and leftover alone, bit for bit, whoever shares the batch. Who plays which chunk is
    `ChunkCache`'s.

    Attributes:
        action_dim: A, length of one action.
        n_action_steps: how many actions of a chunk are played before the policy is asked again.
        input_features: observation key -> shape of one row, as declared by the checkpoint (images
            channel-first there, given channel-last uint8).
        fingerprint: sha256 over configuration, weights and processors; equal fingerprints mean
            equal answers on equal hardware.

    What else `PolicyDescription` lists is optional, and read through `PolicyDescription.of`. So is
    `submit`, which takes what `infer` takes and returns at once: `.result()` of what it returns is
    the `Prediction`, `.cancel()` says that nobody will ask for it.
    """

    action_dim: int
    n_action_steps: int
    input_features: dict[str, tuple[int, ...]]
    fingerprint: str

    def infer(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        env_ids: Sequence[int],
        seeds: Sequence[int] | None = None,
        leftovers: np.ndarray | None = None,
    ) -> Prediction:
        """One chunk of actions per row.

        Args:
            observations: key -> [B, ...], or [B, n_obs_steps, ...] oldest first if `n_obs_steps` is
                above 1; keys that the policy does not use are ignored.
            tasks: B instructions in words.
            env_ids: B environment numbers, for policies that key anything by environment.
            seeds: B integers; a stochastic policy draws row i's noise from seed i alone.
            leftovers: [B, T, A] float32 in the policy's own units: what is left of the chunk being
                played, from the action of this step on, then NaN; a row of NaN has none, such as an
                episode's first. Given to policies with `rtc` only. Source: Black et al. 2025,
                "Real-Time Execution of Action Chunking Flow Policies", arXiv 2506.07339.
        """
        ...


@dataclasses.dataclass(frozen=True)
class PolicyDescription:
    """The facts of a policy that others must know without loading it.

    Attributes:
        chunk_size: T, actions per row that `infer` returns (default `n_action_steps`). Those beyond
            `n_action_steps` are played by prefetched chunks only, see `ChunkCache`.
        n_obs_steps: observations per row that `infer` takes.
        feature_dim: F, width of the features that it returns; 0 for none.
        batch_rows: rows of every network call, for a policy that pads and splits to one shape.
        rtc: real-time chunking: it takes leftovers and returns normalised chunks.
    """

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
        features = {key: tuple(shape) for key, shape in policy.input_features.items()}
        if isinstance(policy.input_features, NamedFeatures):
            features = NamedFeatures(features, policy.input_features.own)
        return cls(
            action_dim=policy.action_dim,
            n_action_steps=policy.n_action_steps,
            input_features=features,
            fingerprint=policy.fingerprint,
            chunk_size=int(getattr(policy, "chunk_size", policy.n_action_steps)),
            n_obs_steps=int(getattr(policy, "n_obs_steps", 1)),
            feature_dim=int(getattr(policy, "feature_dim", 0)),
            batch_rows=getattr(policy, "batch_rows", None),
            rtc=bool(getattr(policy, "rtc", False)),
        )

    def shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the observations of a request; images [rows, H, W, C]."""
        window = () if self.n_obs_steps == 1 else (self.n_obs_steps,)
        return {
            key: (rows, *window, *((*shape[1:], shape[0]) if is_image(key, shape) else shape))
            for key, shape in self.input_features.items()
        }

    def zeros(self, rows: int) -> dict[str, np.ndarray]:
        """Observations of zeros in the shapes and types that the policy takes."""
        return {
            key: np.zeros(
                shape, np.uint8 if is_image(key, self.input_features[key]) else np.float32
            )
            for key, shape in self.shapes(rows).items()
        }

    def check(
        self,
        observations: Mapping[str, np.ndarray],
        tasks: Sequence[str],
        leftovers: np.ndarray | None = None,
    ) -> int:
        """The number of rows of a request that fits.

        Raises:
            ValueError: an observation is missing or has another shape, or the leftovers do not fit.
        """
        num_rows = len(tasks)
        if not set(self.input_features) <= set(observations):
            raise ValueError(missing_observations(self.input_features, observations))
        for key, expected in self.shapes(num_rows).items():
            if np.shape(observations[key]) != expected:
                raise ValueError(
                    f"observation {key!r} has shape {np.shape(observations[key])}; expected "
                    f"{expected} for {num_rows} tasks"
                )
        if leftovers is None:
            return num_rows
        if not self.rtc:
            raise ValueError(
                "this base policy takes no leftovers: load it with rtc=True (policy.rtc=true), or "
                "give none"
            )
        if leftovers.shape != (num_rows, self.chunk_size, self.action_dim):
            raise ValueError(
                f"leftovers of shape {leftovers.shape}; expected {num_rows} rows of "
                f"{self.chunk_size} normalised actions of {self.action_dim} numbers, NaN after "
                "the last"
            )
        return num_rows


def check_acts(policy: BasePolicy, where: str) -> None:
    """Ask a policy for one chunk, on zeros: nothing has to be simulated, or moved, for that.

    Args:
        policy: loaded.
        where: begins the message; its folder.

    Raises:
        ValueError: it cannot answer, or answers what is not finite.
    """
    try:
        chunks = policy.infer(PolicyDescription.of(policy).zeros(1), [""], [0], [0]).chunks
    except Exception as error:  # of many kinds; what the user can mend is the folder
        raise ValueError(f"{where} does not answer: {error}") from error
    if not np.isfinite(chunks).all():
        raise ValueError(f"{where} answers with actions that are not finite: train it anew")


def is_image(key: str, shape: tuple[int, ...]) -> bool:
    """LeRobot's convention: three dimensions under `observation.image...`."""
    return key.startswith("observation.image") and len(shape) == 3


def channel_first(key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an environment's observation as LeRobot declares it."""
    return (shape[2], *shape[:2]) if is_image(key, shape) else shape
