"""Base-policy data before the first update: offline successes and the warm-up, cached on disk."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from pld_ray.columns import INTERVENED, Columns
from pld_ray.config.start_check import check_collected, check_imitated
from pld_ray.data.normalizer import Normalizer
from pld_ray.files.state_tree import load_tree, save_tree
from pld_ray.networks.reward_classifier import classifier_fingerprint
from pld_ray.policies import base_policy_fingerprint
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.demonstrations import demonstrations_identity, load_demonstrations
from pld_ray.rllib.learners import Learners
from pld_ray.rllib.progress import Progress
from pld_ray.rllib.runners import Runners
from pld_ray.rollout import factory
from pld_ray.rollout.episode import concatenate_episodes, split_episodes
from pld_ray.rollout.messages import EpisodeBatch, ReplayBatch
from pld_ray.rollout.offline_cache import FORMAT_VERSION, OfflineCache, OfflineCacheError
from pld_ray.rollout.start_order import StartOrder, ended_episodes

log = logging.getLogger("pld_ray")

STATE_FILE = "collection"
"""Of a checkpoint that was made while collecting, without suffix."""
NOT_DATA = (
    "base_policy",  # told by its fingerprint and loader instead
    "prefetch",  # likewise, by its options
    "assets",  # where the meshes lie, not what they are
    "vectorization",
    "step_timeout_s",
    "reset_timeout_s",
)
"""Entries of `env_config` that shape no column."""
SHAPING_PARAMS = (
    "offline_episodes",
    "collection_steps",
    "warmup_steps",
    "warmup_actions",
    "compose_base",
    "gripper",
    "gripper_dims",
    "grasp_penalty",
)
"""Fields of `ResidualSACParams` that decide which columns are collected and what is in them."""
SHAPING_SETTINGS = (
    "num_env_runners",  # each draws its own episodes
    "num_envs_per_env_runner",
    "sample_steps",  # where the rounds end
    "collection_seed",
)


def collection_identity(config: ResidualSACConfig) -> dict[str, Any]:
    """All that shapes the collected columns, as plain JSON: equal identities, equal data.

    Raises:
        ValueError, OSError: the base policy, the reward classifier or a dataset cannot be read.
    """
    policy = config.base_policy_options
    environment = {k: v for k, v in config.env_config.items() if k not in NOT_DATA}
    if factory.CLASSIFIER in environment:  # by what it says, not by where it lies
        environment[factory.CLASSIFIER] = classifier_fingerprint(environment[factory.CLASSIFIER])
    identity = {
        "format_version": FORMAT_VERSION,
        "environment": environment,
        "base_policy": base_policy_fingerprint(policy.type, policy.path),
        "base_policy_type": policy.type,
        "base_policy_loader": policy.loader(),
        "base_policy_prefetch": policy.prefetch,
        **{name: getattr(config, name) for name in (*SHAPING_SETTINGS, *SHAPING_PARAMS)},
    }
    if config.demo_path:
        identity |= {
            "demonstrations": demonstrations_identity(config),
            "demo_episodes": config.demo_episodes,
        }
        if "entry_point" in environment:  # the base policy labels them by what its info tells
            identity["task"] = factory.task_instructions(config.env_config)
    return json.loads(json.dumps(identity, sort_keys=True))


class BaseCollection:
    """Plays the base policy alone until both rings have what they need, or reads a cache.

    The first `offline_episodes` successes go to the offline ring, or those of the first
    `collection_steps` steps where that are fewer, but one at least. The warm-up (formula 5) is a
    plain base rollout: the first episodes, successes and failures in the order in which they
    began, until they hold `warmup_steps` steps. A success may be in both; a failure after the
    warm-up is not kept. A random warm-up is collected after the successes instead.

    The data is drawn from `collection_seed`, so that every seed of a run can share it. A cache
    counts its environment steps round by round, as they were collected: a run that reads one has
    the same steps in the same iterations as the run that wrote it.

    With `demo_path` the offline ring holds the episodes of datasets in place of successes of the
    base policy, which plays the warm-up alone.

    Args:
        config: what is collected, and where the cache is.
        progress, learners, runners: of the run.
    """

    def __init__(
        self, config: ResidualSACConfig, progress: Progress, learners: Learners, runners: Runners
    ) -> None:
        self.config, self.params = config, config.learner_params()
        self.progress, self.learners, self.runners = progress, learners, runners
        self.offline: list[Columns] = []
        self.warmup: list[Columns] = []
        self.rounds: list[int] = []
        """Environment steps of each round, those of a cache that are still to be counted too."""
        self._order = StartOrder()
        self._counted = 0
        self._started = False
        self._random_actions = False

    def step(self) -> bool:
        """One round; the last one, which returns True, feeds the learners."""
        if not self._started:
            self._start()
        if self._counted < len(self.rounds):  # of a cache
            steps = self.rounds[self._counted]
            self.runners.metrics.aggregate([sampled_steps(steps)], key=ENV_RUNNER_RESULTS)
            self._count(steps)
        elif self._incomplete():
            self._begin_random_warmup()
            request = self.runners.request(base_only=True, random_actions=self._random_actions)
            batches = self.runners.gather(request)
            self.rounds.append(sum(batch.num_env_steps for batch in batches))
            self._count(self.rounds[-1])
            self._sort(batches)
            self._warn_without_success()
            if not self._incomplete() and (cache := self._cache()) is not None:
                self._keep(cache)
        if self._counted < len(self.rounds) or self._incomplete():
            return False
        self._feed()
        return True

    def check_cache(self) -> None:
        """See, before anything is played, that the cache is this run's.

        Raises:
            OfflineCacheError: it is another one's, or could not be kept.
        """
        if (cache := self._cache()) is not None:
            cache.check()

    def _keep(self, cache: OfflineCache) -> None:
        """Save what was collected; a cache that cannot be written does not cost the run as well."""
        try:
            cache.save(self.offline, self.warmup, self.rounds)
        except OfflineCacheError as error:
            log.warning("%s; this run goes on with what it has collected", error)

    def _start(self) -> None:
        """Take a pretrained critic over, or refuse it before anything is collected for it; read the
        cache if there is one, unless a checkpoint has brought a part already.

        Raises:
            ConfigError: there is nobody to imitate, or to collect successes.
        """
        self._started, config = True, self.config
        check_imitated(
            self.params, config.intervention.device, config.demo_path, config.pretrained_critic
        )
        if self.config.pretrained_critic is not None:
            self.learners.load_critic(self.config.pretrained_critic)
        cache = self._cache()
        if cache is not None and not self.rounds:
            if cache.exists():
                self.offline, self.warmup, self.rounds = cache.load()
                return
            cache.check_writable()
        if config.env == factory.ENV_NAME and "entry_point" not in config.env_config:
            check_collected(self.params, config.base_policy_options.type, config.demo_path)
        if self.config.demo_path:
            self.offline = load_demonstrations(self.config, self.runners)
        self.runners.restart(self.seed)

    @property
    def seed(self) -> int:
        """Of the next episodes: a resumed collection does not repeat those that it has."""
        return self.config.collection_seed * 1_000_003 + len(self.rounds)

    def _count(self, steps: int) -> None:
        self._counted += 1
        self.progress.collection_env_steps += steps
        self.progress.env_steps = self.progress.collection_env_steps

    def _begin_random_warmup(self) -> None:
        """With random warm-up, once the base policy's successes are complete: fresh episodes."""
        if self._random_actions or self.params.warmup_actions == "base":
            return
        self._random_actions = not self._offline_incomplete()
        if self._random_actions and self.offline:
            self.runners.restart(self.seed)

    def _incomplete(self) -> bool:
        return self._offline_incomplete() or self._warmup_incomplete()

    def _offline_incomplete(self) -> bool:
        wanted, limit = self.params.offline_episodes, self.params.collection_steps
        if self.offline and limit and sum(self.rounds) >= limit:
            return False
        return not self.config.demo_path and len(self.offline) < wanted

    def _warn_without_success(self) -> None:
        """Once, where the collection would end but nothing has succeeded."""
        limit, steps = self.params.collection_steps, sum(self.rounds)
        passed = steps - self.rounds[-1] < limit <= steps
        if passed and not self.offline and self._offline_incomplete():
            log.warning(
                "the base policy has not succeeded once in %d steps: collection goes on until it "
                "does; for one that cannot, set algorithm.offline_episodes=0 or give --demo_path",
                steps,
            )

    def _warmup_incomplete(self) -> bool:
        return num_steps(self.warmup) < self.params.warmup_steps

    def _sort(self, batches: list[EpisodeBatch]) -> None:
        for ended in ended_episodes(batches):
            _, episode, summary = ended
            if summary.success and self._offline_incomplete():
                self.offline.append(episode)
            if self._random_actions or self.params.warmup_actions == "base":
                self._order.add(ended)
        for _, episode, _ in self._order.take(batches):
            if self._warmup_incomplete():
                self.warmup.append(episode)
        if not self._warmup_incomplete():
            self._order = StartOrder()

    def _feed(self) -> None:
        """Fill both rings; take the observation statistics, where no critic has brought its own."""
        self.progress.collection_stored_steps = num_steps(self.warmup)
        shards = max(1, self.config.num_learners)
        if self.params.actor_loss == "hg_dagger" and self.config.demo_path:
            self.offline = [of_a_person(episode) for episode in self.offline]
        self.learners.store(
            [
                ReplayBatch(*concatenate_episodes(episodes[shard::shards]), buffer, shard)
                for buffer, episodes in (("offline", self.offline), ("online", self.warmup))
                for shard in range(shards)
            ]
        )
        if self.config.pretrained_critic is None:
            self.learners.fit_normalizer(self._state_statistics())
        self.offline, self.warmup = [], []

    def _state_statistics(self) -> Normalizer | None:
        """Of `norm_stats`, if there are any."""
        if self.config.norm_stats is None:
            return None
        wanted, _ = self.runners.describe_environment()
        return Normalizer.of_state(self.config.norm_stats, wanted, self.config.norm_stats_mode)

    def _cache(self) -> OfflineCache | None:
        if self.config.offline_cache is None:
            return None
        return OfflineCache(self.config.offline_cache, collection_identity(self.config))

    # --- checkpoint ------------------------------------------------------------------------------

    def save(self, folder: pathlib.Path) -> None:
        """Write what has been collected so far into a checkpoint."""
        tree: dict[str, Any] = {"rounds": self.rounds, "counted": self._counted}
        for name, episodes in (
            ("offline", self.offline),
            ("warmup", self.warmup + self._order.held_back),
        ):
            columns, lengths = concatenate_episodes(episodes)
            tree[name] = {"columns": columns, "episode_lengths": lengths}
        save_tree(folder / STATE_FILE, tree)

    def load(self, folder: pathlib.Path) -> None:
        """Go on from what `save` wrote, or from the beginning if it was not called.

        Raises:
            StateFileError: a file is damaged.
        """
        tree: dict[str, Any] = {"rounds": [], "counted": 0}
        if (folder / STATE_FILE).with_suffix(".json").is_file():
            tree = load_tree(folder / STATE_FILE)
        none: dict[str, Any] = {"columns": {}, "episode_lengths": []}
        self.offline, self.warmup = (
            split_episodes(**tree.get(name, none)) for name in ("offline", "warmup")
        )
        self.rounds, self._counted = tree["rounds"], tree["counted"]
        steps = sum(self.rounds[: self._counted])
        self.progress.env_steps = self.progress.collection_env_steps = steps
        self._order, self._started, self._random_actions = StartOrder(), False, False


def of_a_person(demonstration: Columns) -> Columns:
    """An episode whose rows are marked as a person's: all, unless it says itself which ones are."""
    if demonstration[INTERVENED].any():
        return demonstration
    return {**demonstration, INTERVENED: np.ones_like(demonstration[INTERVENED])}


def sampled_steps(steps: int) -> dict[str, Any]:
    """What a runner that has taken so many steps tells: RLlib's iterations are as long as that."""
    metrics = MetricsLogger()
    key = NUM_ENV_STEPS_SAMPLED_LIFETIME
    metrics.log_value(key, steps, reduce="lifetime_sum", with_throughput=True)
    return metrics.reduce()


def num_steps(episodes: list[Columns]) -> int:
    """Transitions of episodes that hold a final frame each."""
    return sum(len(episode["reward"]) - 1 for episode in episodes)
