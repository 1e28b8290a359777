"""A miniature of a LeRobot policy as Q-chunking's actor, and an update of it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from tiny_policies import SIDE, STATE, make_observations
from tiny_policies import small_networks as small

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.chunked.optimizers import make_optimizers
from pld_ray.algorithm.chunked.update import ChunkedUpdate
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.policies.lerobot_actor import LeRobotActor
from pld_ray.replay import ChunkRing

H, A = 4, 7
TASK = "open the drawer"


def load(folder, horizon=H):
    with small():
        return LeRobotActor(folder[0], TASK, horizon, flow_steps=3, tokenizer_path=folder[1])


OBSERVATIONS = gym.spaces.Dict(
    {
        STATE: gym.spaces.Box(-np.inf, np.inf, (8,), np.float32),
        "observation.images.image": gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        "observation.images.image2": gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
        "base_action": gym.spaces.Box(-1, 1, (A,), np.float32),
    }
)
ACTIONS = gym.spaces.Box(-1, 1, (A,), np.float32)


def episodes(lengths=(5, 6), successes=(True, True)):
    rng = np.random.default_rng(0)
    rows = sum(lengths) + len(lengths)
    columns = {
        **make_observations(rows, 0),
        "action": rng.uniform(-1, 1, (rows, A)).astype(np.float32),
        "base_action": np.zeros((rows, A), np.float32),
        **{name: np.zeros(rows, np.float32) for name in ("reward", "residual_scale")},
        **{n: np.zeros(rows, bool) for n in ("terminated", "truncated", "intervened", "success")},
    }
    end = -1
    for length, success in zip(lengths, successes, strict=True):
        end += length + 1
        for name in ("reward", "terminated", "success"):
            columns[name][end - 1] = success
    return columns, list(lengths)


def make_parts(folder, stored=None, **options):
    """Networks, a replay with episodes, and the parameters."""
    params = ACRLPDParams(
        **{
            "actor": "lerobot",
            "actor_path": str(folder[0]),
            "horizon": H,
            "batch_size": 4,
            "num_critics": 2,
            "hidden_dims": [16],
            "flow_steps": 2,
            "target_candidates": 2,
            "num_candidates": 3,
            **options,
        }
    )
    params.validate()
    networks = ChunkedNetworks.of_spaces(OBSERVATIONS, ACTIONS, params, seeing=load(folder))
    schema = replay_schema(networks, OBSERVATIONS, ACTIONS)
    replay = make_replay(schema, params, torch.device("cpu"), 0, ring=ChunkRing)
    replay.offline.add_episodes(*(stored or episodes()), gamma=params.gamma)
    return networks, replay, params


def make_update(folder, **options):
    networks, replay, params = make_parts(folder, **options)
    return ChunkedUpdate(networks, make_optimizers(networks, params), replay, params)
