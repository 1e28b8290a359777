"""Demonstrations in `envs.point`, good and bad, as a LeRobotDataset."""

from __future__ import annotations

import pathlib

import numpy as np

from envs.point import PointEnv
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.rollout.episode import EpisodeBuilder

SIDE, EPISODE_LENGTH = 0.6, 25


def record(
    root: pathlib.Path,
    episodes: int = 12,
    good: float = 0.5,
    env: PointEnv | None = None,
    every: int | None = None,
) -> pathlib.Path:
    """Half of the episodes go to the goal, the others away from it; windows may start at `every`
    so-manieth row."""
    writer = EpisodeWriter(root, Recording("reach the goal", 20))
    env = env or PointEnv(EPISODE_LENGTH, side=SIDE)
    rng = np.random.default_rng(0)
    while len(writer) < episodes:
        sign = 1.0 if len(writer) < good * episodes else -1.0
        observation, info = env.reset(seed=int(rng.integers(2**31)))
        builder, over = EpisodeBuilder(), False
        while not over:
            towards = observation["observation.environment_state"][:3]
            action = np.zeros(7, np.float32)
            action[:3] = np.clip(sign * towards / 0.05 + 0.3 * rng.standard_normal(3), -1, 1)
            before = {key: value[None] for key, value in observation.items()}
            observation, reward, terminated, truncated, info = env.step(action)
            builder.add(before, 0, action, reward, terminated, truncated, residual_scale=0.0)
            over = terminated or truncated
        if len(builder) < 6:
            continue
        after = {key: value[None] for key, value in observation.items()}
        columns = builder.finish(after, 0, info["is_success"])
        if every is not None:
            columns["start"] = np.arange(len(columns["reward"])) % every == 0
        writer.add(columns)
    writer.finish()
    return root
