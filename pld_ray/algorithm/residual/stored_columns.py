"""From a rollout's columns to replay rows: which are kept, and features in place of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.networks.encoders import FrozenFeatures, feature_key
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay
from pld_ray.rllib.module import BASE_ACTION, IMAGE_PREFIX

FEATURE_PREFIX = "observation.features."


def make_replay(
    module: Any, params: ResidualSACParams, device: torch.device, seed: int, num_shards: int = 1
) -> SymmetricReplay:
    """Both rings of one learner, each with its share of the capacity."""
    schema = replay_schema(module)
    capacities = [
        max(2, -(-capacity // num_shards))
        for capacity in (params.offline_capacity, params.online_capacity)
    ]
    return SymmetricReplay(
        offline=FrameRing(schema, capacities[0], device, seed=2 * seed),
        online=FrameRing(schema, capacities[1], device, seed=2 * seed + 1),
    )


def replay_schema(module: Any) -> ReplaySchema:
    """The replay's columns for this module's spaces.

    Images are kept only if the networks read them, and as features if their encoder is frozen.
    """
    columns = {
        key: ColumnSpec(tuple(space.shape), str(np.dtype(space.dtype)))
        for key, space in module.observation_space.spaces.items()
        if key != BASE_ACTION and not key.startswith(IMAGE_PREFIX)
    }
    frozen = module.frozen_features
    for key in module.image_columns:
        height, width, channels = module.observation_space.spaces[key].shape
        if frozen is None:
            columns[key] = ColumnSpec((height, width, channels), "uint8")
        else:
            columns[feature_key(key)] = ColumnSpec(frozen.shape(height, width), "float16")
    action = ColumnSpec(tuple(module.action_space.shape), "float32")
    columns |= {BASE_ACTION: action, "action": action}
    columns |= {
        "reward": ColumnSpec((), "float32"),
        "terminated": ColumnSpec((), "bool"),
        "truncated": ColumnSpec((), "bool"),
        "residual_scale": ColumnSpec((), "float32"),
        "intervened": ColumnSpec((), "bool"),
        "mc_return": ColumnSpec((), "float32"),
    }
    if module.discrete_critic is not None:
        columns |= {
            "discrete_action": ColumnSpec((), "float32"),
            "discrete_penalty": ColumnSpec((), "float32"),
        }
    if frozen is None:
        return ReplaySchema(columns, module.observation_keys)
    return ReplaySchema(columns, module.observation_keys, frozen.fingerprint)


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
