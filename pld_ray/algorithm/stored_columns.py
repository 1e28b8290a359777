"""The columns of a replay: which of a rollout's are kept, with features in place of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import gymnasium as gym
import numpy as np
import torch

from pld_ray.columns import (
    BASE_ACTION,
    IMAGE_PREFIX,
    VECTOR_KEYS,
)
from pld_ray.config.learner import LearnerParams
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


def vector_keys(observations: gym.spaces.Dict) -> list[str]:
    """The observation columns that are concatenated into the networks' input, in order."""
    keys = [key for key in VECTOR_KEYS if key in observations.spaces]
    if not keys:
        raise ValueError(
            f"the environment gives none of {VECTOR_KEYS}; it gives {sorted(observations)}"
        )
    return keys
