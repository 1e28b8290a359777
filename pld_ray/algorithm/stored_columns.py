"""From a rollout's columns to replay rows: which are kept, and features in place of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from pld_ray.columns import (
    BASE_ACTION,
    FEATURE_PREFIX,
    IMAGE_PREFIX,
    SUCCEEDED,
    SUCCESS,
    VECTOR_KEYS,
)
from pld_ray.config.learner import LearnerParams
from pld_ray.errors import UserError
from pld_ray.networks.encoders import FrozenFeatures, feature_key
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay


class Reader(Protocol):
    """What networks read of the replay.

    Attributes:
        observation_keys: vector columns that make the observation, in order.
        image_columns: camera -> the column it is read from.
        frozen_features: the encoder whose features are stored in place of images.
        extra_columns: further columns that the losses need.
    """

    observation_keys: list[str]
    image_columns: dict[str, str]
    frozen_features: FrozenFeatures | None

    @property
    def extra_columns(self) -> Mapping[str, ColumnSpec]: ...


class ReturnRangeError(UserError, ValueError):
    """The reward leaves the range that the critic was configured for; the message says by what."""


def make_replay(
    schema: ReplaySchema,
    params: LearnerParams,
    device: torch.device,
    seed: int,
    num_shards: int = 1,
    ring: type[FrameRing] = FrameRing,
) -> SymmetricReplay:
    """Both rings of one learner, each with its share of the capacity."""
    capacities = [
        max(2, -(-capacity // num_shards))
        for capacity in (params.offline_capacity, params.online_capacity)
    ]
    return SymmetricReplay(
        offline=ring(schema, capacities[0], device, seed=2 * seed),
        online=ring(schema, capacities[1], device, seed=2 * seed + 1),
    )


def replay_schema(
    networks: Reader, observations: gym.spaces.Dict, actions: gym.spaces.Box
) -> ReplaySchema:
    """The replay's columns for these spaces, `base_action` among the observations.

    Images are kept only if the networks read them, and as features if their encoder is frozen.
    """
    columns = {
        key: ColumnSpec(tuple(space.shape or ()), str(np.dtype(space.dtype)))
        for key, space in observations.spaces.items()
        if key != BASE_ACTION and not key.startswith(IMAGE_PREFIX)
    }
    frozen = networks.frozen_features
    for key in networks.image_columns:
        height, width, channels = observations.spaces[key].shape or ()
        if frozen is None:
            columns[key] = ColumnSpec((height, width, channels), "uint8")
        else:
            columns[feature_key(key)] = ColumnSpec(frozen.shape(height, width), "float16")
    action = ColumnSpec(tuple(actions.shape), "float32")
    columns |= {BASE_ACTION: action, "action": action}
    columns |= {
        "reward": ColumnSpec((), "float32"),
        "terminated": ColumnSpec((), "bool"),
        "truncated": ColumnSpec((), "bool"),
        "residual_scale": ColumnSpec((), "float32"),
        "intervened": ColumnSpec((), "bool"),
        "mc_return": ColumnSpec((), "float32"),
    }
    columns |= networks.extra_columns
    if frozen is None:
        return ReplaySchema(columns, networks.observation_keys)
    return ReplaySchema(columns, networks.observation_keys, frozen.fingerprint)


def store_episodes(
    ring: FrameRing,
    columns: Mapping[str, np.ndarray],
    episode_lengths: list[int],
    params: LearnerParams,
    frozen: FrozenFeatures | None,
) -> None:
    """Write whole episodes, with the reward that is learnt from and features in place of images.

    Args:
        ring: where to.
        columns: rows of all episodes, a final frame each; `start` as for `FrameStore.add_episodes`.
        episode_lengths: transitions of each.
        params: reward scale and bias, gamma and the critic's range.
        frozen: the vision encoder whose features are kept.

    Raises:
        ValueError: a NaN or an infinity; the message names column, episode and row.
        ReturnRangeError: a return that a categorical critic cannot represent.
    """
    columns = with_scaled_reward(columns, params.reward_scale, params.reward_bias)
    columns = with_features(columns, ring.schema, frozen)
    if SUCCEEDED in ring.schema.columns:
        columns = {**columns, SUCCEEDED: of_successes(columns[SUCCESS], episode_lengths)}
    ring.add_episodes(columns, episode_lengths, params.gamma)
    if params.critic_atoms > 1:
        added = ring.transition_rows()[-sum(episode_lengths) :]
        check_returns(ring.column("mc_return", added), params.value_range)


def with_scaled_reward(
    columns: Mapping[str, np.ndarray], scale: float, bias: float
) -> Mapping[str, np.ndarray]:
    """The columns with the reward that is learnt from, scale * r + bias; returns follow from it."""
    if scale == 1.0 and bias == 0.0:
        return columns
    return {**columns, "reward": (scale * columns["reward"] + bias).astype(np.float32)}


def with_features(
    columns: Mapping[str, np.ndarray], schema: ReplaySchema, frozen: FrozenFeatures | None
) -> Mapping[str, Any]:
    """The columns that the ring stores; each frame passes through a frozen encoder once, here."""
    if frozen is None:
        return columns
    features = {
        key: frozen.compute(columns[key.replace(FEATURE_PREFIX, IMAGE_PREFIX, 1)])
        for key in schema.columns
        if key.startswith(FEATURE_PREFIX)
    }
    return {**columns, **features}


def of_successes(success: np.ndarray, episode_lengths: Sequence[int]) -> np.ndarray:
    """Whether the episode of each row reached the goal, bool [sum(L + 1)].

    Args:
        success: bool [sum(L + 1)], of single steps.
        episode_lengths: transitions L of each episode; its final frame is one row more.
    """
    rows = np.add(episode_lengths, 1)
    starts = np.cumsum(rows) - rows
    return np.repeat(np.logical_or.reduceat(success, starts), rows)


def check_returns(returns: torch.Tensor, value_range: Sequence[float]) -> None:
    """Raise ReturnRangeError if a categorical critic could not represent these returns."""
    low, high = float(returns.min()), float(returns.max())
    if low < value_range[0] - 1e-6 or high > value_range[1] + 1e-6:
        raise ReturnRangeError(
            f"discounted returns between {low:.4g} and {high:.4g} lie outside "
            f"algorithm.value_range={list(value_range)}, all that the categorical critic can "
            "represent: set it to the returns that the reward allows, or set critic_atoms=1"
        )


def vector_keys(observations: gym.spaces.Dict) -> list[str]:
    """The observation columns that are concatenated into the networks' input, in order."""
    keys = [key for key in VECTOR_KEYS if key in observations.spaces]
    if not keys:
        raise ValueError(
            f"the environment gives none of {VECTOR_KEYS}; it gives {sorted(observations)}"
        )
    return keys
