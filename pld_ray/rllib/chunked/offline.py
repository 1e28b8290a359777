"""Datasets into the offline ring, and what a dataset must hold for that."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from pld_ray.columns import BASE_ACTION, START, SUCCESS, Columns
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.data.demonstrations import EpisodeFacts, Wanted
from pld_ray.data.errors import DataError
from pld_ray.data.normalizer import Normalizer
from pld_ray.rllib.config import OffPolicyConfig
from pld_ray.rllib.demonstrations import check_room, read_demonstrations
from pld_ray.rollout.episode import concatenate_episodes
from pld_ray.rollout.messages import ReplayBatch

STORED = ("action", "reward", "terminated", "truncated", "residual_scale", "intervened", SUCCESS)

PART_BYTES = 256_000_000
"""Of episodes that are stored together."""


class Storing(Protocol):
    """What the datasets are given to: `Learners`, or one of them."""

    def store(self, batches: Sequence[ReplayBatch]) -> Any: ...

    def fit_normalizer(self, state: Normalizer | None = None) -> None: ...


class Describing(Protocol):
    """Who knows what is learnt from: `Runners`, or one who has looked at the environment."""

    def describe_environment(self) -> tuple[Wanted, str]: ...


class OfflineData:
    """Fills the offline ring from `demo_path`, at once, and takes the observation statistics.

    Args:
        config: `demo_path`, `demo_episodes`.
        learners, runners: of the run.
    """

    def __init__(self, config: OffPolicyConfig, learners: Storing, runners: Describing) -> None:
        self.config, self.learners, self.runners = config, learners, runners

    def step(self) -> bool:
        """Read and store everything; True.

        Raises:
            DataError: a dataset is of another environment, or cannot be learnt from.
        """
        wanted, task = self.runners.describe_environment()
        facts: list[EpisodeFacts] = []
        for part in in_parts(self._read(wanted, task, facts)):
            self._store(part, first=len(facts) - len(part))
        params = self.config.learner_params()
        lengths = [fact.length for fact in facts]
        check_room(lengths, params.offline_capacity, self.config.num_learners)
        check_episodes(facts, params, self.config.num_learners)
        stats = self.config.norm_stats
        mode = self.config.norm_stats_mode
        self.learners.fit_normalizer(stats and Normalizer.of_state(stats, wanted, mode))
        return True

    def _read(self, wanted: Wanted, task: str, facts: list[EpisodeFacts]) -> Iterator[Columns]:
        """The episodes, one by one; what is known of them goes into `facts`."""
        for dataset, index, episode in read_demonstrations(self.config, wanted, task):
            facts.append(EpisodeFacts.of(dataset, index, episode))
            yield as_stored(episode, wanted)

    def _store(self, episodes: Sequence[Columns], first: int) -> None:
        """Episodes from number `first` on; with several learners they take turns."""
        shards = max(1, self.config.num_learners)
        self.learners.store(
            [
                ReplayBatch(
                    *concatenate_episodes(episodes[(shard - first) % shards :: shards]),
                    "offline",
                    shard,
                )
                for shard in range(shards)
            ]
        )

    def save(self, folder: pathlib.Path) -> None:
        """Nothing: the datasets are read again."""

    def load(self, folder: pathlib.Path) -> None:
        """Nothing."""


def in_parts(episodes: Iterable[Columns]) -> Iterator[list[Columns]]:
    """Lists of episodes that fit into memory, images too."""
    part: list[Columns] = []
    size = 0
    for episode in episodes:
        part.append(episode)
        size += sum(column.nbytes for column in episode.values())
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def as_stored(episode: Columns, wanted: Wanted) -> Columns:
    """A recorded episode [L + 1, ...] as a runner of Q-chunking would have stored it, with `start`:
    those of several datasets are stored together, and one of them may mark its rows."""
    kept = {name: episode[name] for name in (*wanted.observations, *STORED)}
    starts = episode.get(START, np.ones(len(episode["reward"]), np.bool_))
    return {**kept, START: starts, BASE_ACTION: np.zeros_like(episode["action"])}


def check_episodes(
    episodes: Sequence[EpisodeFacts], params: ACRLPDParams, num_learners: int = 0
) -> None:
    """Refuse demonstrations that chunks of H actions cannot be learnt from.

    Args:
        episodes: of `demo_path`, in the order in which learners take turns with them.
        params: of the algorithm.
        num_learners: each learns from its share alone; 0 is this process.

    Raises:
        DataError: there are none, one is shorter than H, none has a window, a learner's share has
            none, or there is none to clone.
    """
    if not episodes:
        raise DataError(
            "there are no demonstrations: name a LeRobotDataset with demo_path (--demo_path=DIR)"
        )
    shortest = min(episodes, key=lambda episode: episode.length)
    if shortest.length < params.return_steps:
        field = "horizon" if params.horizon >= params.n_step else "n_step"
        raise DataError(
            f"{shortest.where} has {shortest.length} steps and algorithm.{field}="
            f"{params.return_steps}: lower the {field}, or leave the episode out"
        )
    if params.bc_episodes == "positive" and not any(episode.success for episode in episodes):
        raise DataError(
            f"none of the {len(episodes)} episodes of demo_path ended in success, so that there is "
            "nothing to clone: record some (pld-ray collect), or clone all episodes with "
            "--algorithm.bc_episodes=all"
        )
    least = params.return_steps if params.tail == "drop" else 1
    usable = [episode for episode in episodes if episode.longest_window >= least]
    if not usable:
        raise DataError(
            f"no row that {START} marks in demo_path has the {least} steps before its episode's "
            "end that a window takes with algorithm.tail=drop: mark earlier ones, or keep short "
            "windows with --algorithm.tail=pad"
        )
    if params.bc_episodes == "positive" and not any(episode.success for episode in usable):
        raise DataError(
            f"{START} marks no row of the episodes of demo_path that ended in success at which a "
            f"window of {least} steps may begin, so that there is nothing to clone: mark some, or "
            "clone all episodes with --algorithm.bc_episodes=all"
        )
    check_shares(episodes, least, max(1, num_learners))


def check_shares(episodes: Sequence[EpisodeFacts], least: int, learners: int) -> None:
    """Refuse episodes that leave a learner without a window: it would wait, or learn nothing.

    Raises:
        DataError: naming the learner.
    """
    fewer = f"use fewer learners (--runners.num_learners, now {learners})"
    if len(episodes) < learners:
        raise DataError(
            f"demo_path has {len(episodes)} episodes for {learners} learners, who are dealt whole "
            f"ones: {fewer}, or name more demonstrations"
        )
    for shard in range(learners):
        share = episodes[shard::learners]
        if all(episode.longest_window < least for episode in share):
            raise DataError(
                f"none of the {len(share)} episodes of demo_path that learner {shard + 1} of "
                f"{learners} is dealt, from {share[0].where} on, has a row that {START} marks "
                f"{least} or more steps before its end: {fewer}, or mark more"
            )
