"""From what the runners bring to rows of the replay: fetched, with the reward that is learnt from,
and features in place of images."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch

from pld_ray.algorithm.shards import Shard
from pld_ray.columns import (
    FEATURE_PREFIX,
    IMAGE_PREFIX,
    START,
    SUCCEEDED,
    SUCCESS,
    Columns,
)
from pld_ray.config.learner import LearnerParams
from pld_ray.errors import UserError
from pld_ray.networks.encoders import FrozenFeatures
from pld_ray.replay import FrameRing, ReplaySchema, SymmetricReplay
from pld_ray.replay.ingest import returns_to_go
from pld_ray.rllib.learners import Stored
from pld_ray.rollout.episode import concatenate_episodes, split_episodes
from pld_ray.rollout.messages import ReplayBatch


class ReturnRangeError(UserError, ValueError):
    """The reward leaves the range that the critic was configured for; the message says by what."""


class Intake:
    """The part of a learner that takes episodes into its shard of the replay."""

    replay: SymmetricReplay
    shard: Shard
    params: Any
    networks: Any
    lost_steps: deque[int]
    """Of batches that died with their node, since `stored` was last asked."""

    def store(self, batches: Sequence[ReplayBatch]) -> Stored:
        """Write episodes into the replay, those that belong to this shard.

        Raises:
            ReturnRangeError: a return lies outside `value_range` of a categorical critic.
            ValueError: a NaN or an infinity in a column.
        """
        self.write(batches)
        return self.stored()

    def write(self, batches: Sequence[ReplayBatch]) -> None:
        """`store`, without asking what the replay holds now."""
        source = whole = None
        for batch in batches:
            if batch.shard % self.shard.count != self.shard.rank or not batch.kept:
                continue
            if batch.columns is not source:  # episodes with a person in them come twice in a row
                source, whole = batch.columns, self.fetch(batch.columns)
            if whole is None:
                if batch.buffer == "online":  # what is stored offline too was counted once
                    self.lost_steps.append(sum(batch.kept))
                continue
            columns = kept_episodes(batch, whole)
            ring = self.replay.offline if batch.buffer == "offline" else self.replay.online
            # where few rows start a window, the others would drop demonstrations for nothing
            window = None if batch.starts is None else self.params.return_steps
            store_episodes(ring, columns, batch.kept, self.params, window)
            self.look_at(batch, columns)

    def fetch(self, source: Any) -> Columns | None:
        """The columns of a runner's batch, with features of a frozen encoder where images are
        stored as such; None if they died with their node."""
        columns, frozen = fetch_columns(source), self.networks.frozen_features
        if columns is None or frozen is None:
            return columns
        return with_features(columns, self.replay.online.schema, frozen)

    def look_at(self, batch: ReplayBatch, columns: Columns) -> None:
        """Told of what was stored of a batch; nothing, unless a learner has something to say."""

    def stored(self) -> Stored:
        """What the replay holds, and what was lost since this was last asked."""
        lost = 0
        while self.lost_steps:
            lost += self.lost_steps.popleft()
        return dataclasses.replace(self.held(), lost_steps=lost)

    def held(self) -> Stored:
        """What the replay holds; whoever asks `stored` is told of the losses."""
        offline, online = self.replay.offline, self.replay.online
        return Stored(0, len(online), len(offline), offline.dropped_first)


def fetch_episodes(batch: ReplayBatch) -> Columns | None:
    """Rows of the episodes to be stored; None if they died with their runner's node."""
    columns = fetch_columns(batch.columns)
    return None if columns is None else kept_episodes(batch, columns)


def kept_episodes(batch: ReplayBatch, columns: Columns) -> Columns:
    """Rows of the episodes to be stored, among those of all that the batch names."""
    if batch.starts is not None:
        columns = {**columns, START: columns[batch.starts]}
    if not batch.skip:
        return columns
    episodes = split_episodes(columns, batch.episode_lengths)
    return concatenate_episodes([e for k, e in enumerate(episodes) if k not in batch.skip])[0]


def fetch_columns(columns: Any) -> Any:
    """The columns behind a reference (or themselves); None if they died with their node."""
    if not isinstance(columns, ray.ObjectRef):
        return columns
    try:
        return ray.get(columns)
    except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError):
        return None


def store_episodes(
    ring: FrameRing,
    columns: Mapping[str, np.ndarray],
    episode_lengths: list[int],
    params: LearnerParams,
    window: int | None = None,
) -> None:
    """Write episodes, with the reward that is learnt from.

    Args:
        ring: where to.
        columns: rows of all episodes, a final frame each; `start` as for `FrameStore.add_episodes`.
        episode_lengths: transitions of each.
        params: reward scale and bias, gamma and the critic's range.
        window: as for `FrameStore.add_episodes`.

    Raises:
        ValueError: a NaN or an infinity; the message names column, episode and row.
        ReturnRangeError: a return that a categorical critic cannot represent.
    """
    columns = with_scaled_reward(columns, params.reward_scale, params.reward_bias)
    if SUCCEEDED in ring.schema.columns:
        columns = {**columns, SUCCEEDED: of_successes(columns[SUCCESS], episode_lengths)}
    if params.critic_atoms > 1:
        rewards = np.split(columns["reward"], np.cumsum(np.add(episode_lengths, 1))[:-1])
        returns = torch.cat([returns_to_go(each[:-1], params.gamma) for each in rewards])
        if returns.isfinite().all():  # else the ring says which column and row is not
            check_returns(returns, params.value_range)
    ring.add_episodes(columns, episode_lengths, params.gamma, window)


def with_scaled_reward(
    columns: Mapping[str, np.ndarray], scale: float, bias: float
) -> Mapping[str, np.ndarray]:
    """The columns with the reward that is learnt from, scale * r + bias; returns follow from it."""
    if scale == 1.0 and bias == 0.0:
        return columns
    return {**columns, "reward": (scale * columns["reward"] + bias).astype(np.float32)}


def with_features(
    columns: Mapping[str, np.ndarray], schema: ReplaySchema, frozen: FrozenFeatures | None
) -> dict[str, Any]:
    """The columns that the ring stores; each frame passes through a frozen encoder once, here."""
    if frozen is None:
        return dict(columns)
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
