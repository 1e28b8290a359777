"""Datasets into the offline ring: read by the driver, labelled by a runner's base policy."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from pld_ray.columns import BASE_ACTION, POLICY_FEATURES, START, Columns
from pld_ray.data.dataset import open_datasets
from pld_ray.data.demonstrations import episodes_in, identity_of, recording_of
from pld_ray.policies import base_policy_fingerprint
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.runners import Runners

log = logging.getLogger("pld_ray")


class Demonstrations:
    """The episodes of `demo_path`, as the runners would have stored them.

    Base actions that a dataset brings are taken where the same policy, asked in the same way, made
    them; all others are computed anew, by the frozen policy along the recorded observations.

    Args:
        config: `demo_path`, `demo_episodes`, and the base policy.

    Raises:
        DataError: a path is no finished LeRobotDataset.
    """

    def __init__(self, config: ResidualSACConfig) -> None:
        self.paths = config.demo_path
        self.datasets = [dataset for path in self.paths for dataset in open_datasets(path)]
        self.successes_only = config.demo_episodes == "successes"
        self.policy = policy_identity(config)

    def identity(self) -> list[str]:
        """Digests of the datasets: equal ones, equal episodes."""
        return [identity_of(dataset) for dataset in self.datasets]

    def load(self, runners: Runners) -> list[Columns]:
        """Every wanted episode, in the order of the datasets.

        Raises:
            DataError: a dataset is of another environment, or a path holds no wanted episode.
            EnvRunnerError: the base policy cannot answer for the recorded observations.
        """
        wanted, task = runners.describe_environment()
        by_policy = {d.root: recording_of(d).get("base_policy") for d in self.datasets}
        episodes: list[Columns] = []
        for path in self.paths:
            before = len(episodes)
            for dataset, _, episode in episodes_in(path, wanted, self.successes_only):
                known = by_policy[dataset.root] == self.policy
                episodes.append(episode if known else without_policy(episode))
            log.info("%s: %d episodes for the offline replay", path, len(episodes) - before)
        for dataset in self.datasets:
            if told := set(dataset.tasks) - {task}:
                log.warning("%s: %s; the environment's task is %r", dataset.root, told, task)
        return runners.label_episodes(with_starts(episodes), task)


def with_starts(episodes: list[Columns]) -> list[Columns]:
    """Where one dataset marks the rows that may start a window, every row of the others may."""
    if not any(START in episode for episode in episodes):
        return episodes
    return [{START: np.ones(len(e["reward"]), np.bool_), **e} for e in episodes]


def without_policy(episode: Columns) -> Columns:
    """An episode without what another base policy made, so that it is computed anew."""
    made = (BASE_ACTION, POLICY_FEATURES)
    return {name: values for name, values in episode.items() if name not in made}


def policy_identity(config: ResidualSACConfig) -> dict[str, Any]:
    """The base policy and how it is asked: equal ones give equal base actions."""
    policy = config.base_policy_options
    return {
        "fingerprint": base_policy_fingerprint(policy.type, policy.path),
        "loader": policy.loader(),
        "prefetch": policy.prefetch,
    }
