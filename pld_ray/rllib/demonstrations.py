"""Datasets into the offline ring: read by the driver, labelled by a runner's base policy."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

from pld_ray.columns import BASE_ACTION, POLICY_FEATURES, Columns
from pld_ray.data.dataset import Dataset
from pld_ray.data.demonstrations import Wanted, episodes_of, identity_of, recording_of
from pld_ray.data.errors import DataError
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
        self.datasets = [Dataset(pathlib.Path(path)) for path in config.demo_path]
        self.successes_only = config.demo_episodes == "successes"
        self.policy = policy_identity(config)

    def identity(self) -> list[str]:
        """Digests of the datasets: equal ones, equal episodes."""
        return [identity_of(dataset) for dataset in self.datasets]

    def load(self, runners: Runners) -> list[Columns]:
        """Every wanted episode, in the order of the datasets.

        Raises:
            DataError: a dataset is of another environment, or holds no wanted episode.
            EnvRunnerError: the base policy cannot answer for the recorded observations.
        """
        wanted, task = runners.describe_environment()
        episodes: list[Columns] = []
        for dataset in self.datasets:
            found = self._episodes(dataset, wanted)
            told = set(dataset.tasks) - {task}
            if told:
                log.warning("%s: %s; the environment's task is %r", dataset.root, told, task)
            log.info("%s: %d episodes for the offline replay", dataset.root, len(found))
            episodes += found
        return runners.label_episodes(episodes, task)

    def _episodes(self, dataset: Dataset, wanted: Wanted) -> list[Columns]:
        found = [e for _, e in episodes_of(dataset, wanted, self.successes_only)]
        if not found:
            raise DataError(
                f"{dataset.root} has no episode that ended in success: record some, or take all "
                "with --demo_episodes=all"
                if self.successes_only
                else f"{dataset.root} has no episode of two frames: record longer ones"
            )
        if recording_of(dataset).get("base_policy") != self.policy:
            made = (BASE_ACTION, POLICY_FEATURES)
            found = [{k: v for k, v in e.items() if k not in made} for e in found]
        return found


def policy_identity(config: ResidualSACConfig) -> dict[str, Any]:
    """The base policy and how it is asked: equal ones give equal base actions."""
    policy = config.base_policy_options
    return {
        "fingerprint": base_policy_fingerprint(policy.type, policy.path),
        "loader": policy.loader(),
        "prefetch": policy.prefetch,
    }
