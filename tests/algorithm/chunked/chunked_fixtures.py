"""A small update on episodes of noise."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.replay import ChunkRing
from pld_ray.rllib.intake import with_features

D, A, H, SIZE = 4, 2, 3, 40
CAMERA = "observation.images.image"
OBSERVATIONS = gym.spaces.Dict(
    {
        "observation.state": gym.spaces.Box(-np.inf, np.inf, (D,), np.float32),
        "base_action": gym.spaces.Box(-1, 1, (A,), np.float32),
    }
)
ACTIONS = gym.spaces.Box(np.float32([-1, -2]), np.float32([1, 4]))


SEEN = gym.spaces.Dict(
    {**OBSERVATIONS.spaces, CAMERA: gym.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)}
)
SMALL_CNN = {
    "vision_encoder_name": "cnn",
    "freeze_vision_encoder": False,
    "image_encoder_hidden_dim": 4,
    "latent_dim": 8,
    "spatial_features": 2,
}


def make_update(seed=0, fill=True, device="cpu", **options):
    params = ACRLPDParams(
        **{
            "horizon": H,
            "batch_size": 16,
            "hidden_dims": [16, 16],
            "num_critics": 3,
            "critic_atoms": 1,
            "flow_steps": 3,
            "target_candidates": 2,
            **options,
        }
    )
    params.validate()
    spaces = OBSERVATIONS if params.vision_encoder_name == "none" else SEEN
    networks = ChunkedNetworks.of_spaces(spaces, ACTIONS, params, seed).to(device)
    schema = replay_schema(networks, spaces, ACTIONS)
    replay = make_replay(schema, params, torch.device(device), seed, ring=ChunkRing)
    if fill:
        for number, ring in enumerate((replay.offline, replay.online)):
            columns, lengths = episodes(number)
            if spaces is SEEN:
                columns[CAMERA] = pictures(number, len(columns["reward"]))
                columns = with_features(columns, schema, networks.frozen_features)
            ring.add_episodes(columns, lengths, gamma=params.gamma)
    optimizers = make_optimizers(networks, params)
    return ChunkedUpdate(networks, optimizers, replay, params, seed)


def episodes(seed, lengths=(5, 4, 6), successes=(True, False, True)):
    rng = np.random.default_rng(seed)
    rows = sum(lengths) + len(lengths)
    columns = {
        "observation.state": rng.standard_normal((rows, D)).astype(np.float32),
        "action": rng.uniform(ACTIONS.low, ACTIONS.high, (rows, A)).astype(np.float32),
        "base_action": np.zeros((rows, A), np.float32),
        "residual_scale": np.zeros(rows, np.float32),
        **{name: np.zeros(rows, bool) for name in ("terminated", "truncated", "intervened")},
        "reward": np.zeros(rows, np.float32),
        "success": np.zeros(rows, bool),
    }
    end = 0
    for length, success in zip(lengths, successes, strict=True):
        last = end + length - 1
        columns["terminated"][last], columns["truncated"][last] = success, not success
        columns["reward"][last] = success
        columns["success"][last] = success
        end += length + 1
    return columns, list(lengths)


def pictures(seed, rows):
    return np.random.default_rng(seed).integers(0, 256, (rows, SIZE, SIZE, 3), dtype=np.uint8)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}
