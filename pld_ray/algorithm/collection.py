"""Base-policy data before the first update: offline successes and the warm-up, cached on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pld_ray.rollout.episode import Columns, concatenate_episodes, split_episodes
from pld_ray.rollout.messages import fetch_columns
from pld_ray.rollout.offline_cache import OfflineCache

if TYPE_CHECKING:
    from pld_ray.algorithm.algorithm import ResidualSAC
    from pld_ray.algorithm.config import ResidualSACConfig


class BaseCollection:
    """Collects `offline_episodes` successes, then `warmup_steps` online steps, or reads a cache.

    Successful episodes go to the offline ring; failed ones, and everything after the successes are
    complete, go to the online ring as the warm-up (formula 5). The data is drawn from
    `collection_seed`, so that every seed of a run can share it.
    """

    def __init__(self, config: ResidualSACConfig) -> None:
        self.params = config.residual_sac_params()
        self.collection_seed = config.collection_seed
        self.cache_folder = config.offline_cache
        self.env_steps = 0
        self.stored_steps = 0  # of the warm-up, in the online ring
        self.offline: list[Columns] = []
        self.warmup: list[Columns] = []
        self._started = False
        self._random_actions = False

    def step(self, algorithm: ResidualSAC) -> None:
        """One share of collection; the last one feeds the learner and opens the online phase."""
        if not self._started:
            self._started = True
            cache = self._cache(algorithm)
            if cache is not None and cache.exists():
                self.offline, self.warmup, self.env_steps = cache.load()
                algorithm.env_steps = self.env_steps
                self._finish(algorithm)
                return
            if cache is not None:
                cache.check_writable()
            algorithm.restart_runners(self.collection_seed)
        if self._incomplete():
            self._begin_random_warmup(algorithm)
            request = algorithm.rounds.request(True, self._random_actions)
            batches = algorithm.rounds.receive(request)
            algorithm.env_steps += sum(b["num_env_steps"] for b in batches)
            self.env_steps = algorithm.env_steps
            for batch in batches:
                self._sort(batch)
        if not self._incomplete():
            cache = self._cache(algorithm)
            if cache is not None:
                cache.save(self.offline, self.warmup, self.env_steps)
            self._finish(algorithm)

    @property
    def fraction_done(self) -> float:
        """Progress of the phase, in [0, 1]."""
        need = self.params.offline_episodes + self.params.warmup_steps
        have = min(len(self.offline), self.params.offline_episodes)
        have += min(self._warmup_steps(), self.params.warmup_steps)
        return have / need if need else 1.0

    def _begin_random_warmup(self, algorithm: ResidualSAC) -> None:
        """With random warm-up, once the base policy's successes are complete: fresh episodes."""
        if self._random_actions or self.params.warmup_actions == "base":
            return
        self._random_actions = len(self.offline) >= self.params.offline_episodes
        if self._random_actions and self.offline:
            algorithm.restart_runners(self.collection_seed + 1)

    def _incomplete(self) -> bool:
        return (
            len(self.offline) < self.params.offline_episodes
            or self._warmup_steps() < self.params.warmup_steps
        )

    def _warmup_steps(self) -> int:
        return sum(len(e["reward"]) - 1 for e in self.warmup)

    def _sort(self, batch: dict[str, Any]) -> None:
        columns = fetch_columns(batch["columns"])
        if columns is None:  # they died with their node; others will be collected
            return
        episodes = split_episodes(columns, batch["episode_lengths"])
        for episode, result in zip(episodes, batch["episodes"], strict=True):
            if result["success"] and len(self.offline) < self.params.offline_episodes:
                self.offline.append(episode)
            elif self._random_actions or self.params.warmup_actions == "base":
                self.warmup.append(episode)

    def _finish(self, algorithm: ResidualSAC) -> None:
        """Feed both rings, take the observation statistics, hand over to the residual."""
        if self.params.warmup_steps == 0:  # the failures on the way to the successes are one
            self.warmup = []
        self.stored_steps = self._warmup_steps()
        batches = []
        shards = max(1, algorithm.config.num_learners)
        for buffer, episodes in (("offline", self.offline), ("online", self.warmup)):
            for shard in range(shards):
                columns, lengths = concatenate_episodes(episodes[shard::shards])
                share = {"columns": columns, "episode_lengths": lengths}
                batches.append({**share, "buffer": buffer, "shard": shard})
        algorithm._learn(
            batches=batches,
            fit_normalizer=True,
            pretrained_critic=algorithm.config.pretrained_critic,
            residual_scale=algorithm.schedule.value(0),
        )
        self.offline, self.warmup = [], []
        algorithm.begin_learning()

    def _cache(self, algorithm: ResidualSAC) -> OfflineCache | None:
        if self.cache_folder is None:
            return None
        identity = algorithm.collection_identity()
        return OfflineCache(self.cache_folder, identity)
