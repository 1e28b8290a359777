"""Datasets into the offline ring: read by the driver, labelled by a runner's base policy."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pld_ray.columns import (
    BASE_ACTION,
    DISCRETE_ACTION,
    DISCRETE_PENALTY,
    GRIPPER_LABELS,
    POLICY_FEATURES,
    START,
    Columns,
)
from pld_ray.data.dataset import Dataset, open_all, open_datasets
from pld_ray.data.demonstrations import Wanted, episodes_in, identity_of, recording_of
from pld_ray.data.errors import DataError
from pld_ray.options import same_places
from pld_ray.policies import base_policy_fingerprint
from pld_ray.rllib.config import OffPolicyConfig, ResidualSACConfig
from pld_ray.rllib.runners import Runners

GRIPPERS = "grippers"
"""Of what a recording tells: `gripper_meaning`."""

log = logging.getLogger("pld_ray")


def read_demonstrations(
    config: OffPolicyConfig, wanted: Wanted, task: str
) -> Iterator[tuple[Dataset, int, Columns]]:
    """The episodes of `demo_path`, as `episodes_in` gives them; the log says how many there are,
    and which datasets tell of another task.

    Raises:
        DataError: a dataset is of another environment, or a path holds no wanted episode.
    """
    for path in config.demo_path:
        number = 0
        for found in episodes_in(path, wanted, config.demo_episodes == "successes"):
            number += 1
            yield found
        log.info("%s: %d episodes for the offline replay", path, number)
        for dataset in open_datasets(path):
            if told := set(dataset.tasks) - {task}:
                log.warning("%s: %s; the environment's task is %r", dataset.root, told, task)


def demonstrations_identity(config: OffPolicyConfig) -> list[str]:
    """Digests of the datasets of `demo_path`: equal ones, equal episodes."""
    return [identity_of(dataset) for dataset in open_all(config.demo_path)]


def load_demonstrations(config: ResidualSACConfig, runners: Runners) -> list[Columns]:
    """The episodes of `demo_path` as the runners would have stored them.

    Base actions that a dataset brings are taken where the same policy, asked in the same way, made
    them; all others are computed anew, by the frozen policy along the recorded observations. So are
    gripper labels, which have to mean the same here besides.

    Raises:
        DataError: as `read_demonstrations` and `check_room`.
        EnvRunnerError: the base policy cannot answer for the recorded observations.
    """
    wanted, task = runners.describe_environment()
    policy = policy_identity(config)
    told = {d.root: recording_of(d) for d in open_all(config.demo_path)}
    known = {root for root, about in told.items() if same_places(about.get("base_policy"), policy)}
    grippers = gripper_meaning(config)
    episodes = [
        with_labels_of(episode, told[dataset.root].get(GRIPPERS, {}), grippers)
        if dataset.root in known
        else without_policy(episode)
        for dataset, _, episode in read_demonstrations(config, wanted, task)
    ]
    lengths = [len(episode["reward"]) - 1 for episode in episodes]
    check_room(lengths, config.learner_params().offline_capacity, config.num_learners)
    return runners.label_episodes(with_starts(episodes), task)


def check_room(lengths: Sequence[int], capacity: int, num_learners: int = 0) -> None:
    """Refuse demonstrations of which the offline ring would drop the first ones again.

    Args:
        lengths: steps of the episodes of `demo_path`, in the order in which learners take turns
            with them.
        capacity: `algorithm.offline_capacity`, rows of all learners.
        num_learners: each holds its share of rows and episodes; 0 is this process.

    Raises:
        DataError: naming the rows that they need.
    """
    shards = max(1, num_learners)
    rows = [length + 1 for length in lengths]  # a final frame each
    needed = shards * max(sum(rows[shard::shards]) for shard in range(shards))
    if math.ceil(capacity / shards) * shards < needed:
        among = f", dealt to {shards} learners," if shards > 1 else ""
        raise DataError(
            f"the {len(rows)} episodes of demo_path{among} need {needed} rows of the offline "
            f"replay and algorithm.offline_capacity={capacity} would drop the first ones: raise "
            f"it to {needed}, or name fewer demonstrations"
        )


def with_starts(episodes: list[Columns]) -> list[Columns]:
    """Where one dataset marks the rows that may start a window, every row of the others may."""
    if not any(START in episode for episode in episodes):
        return episodes
    return [{START: np.ones(len(e["reward"]), np.bool_), **e} for e in episodes]


def without_policy(episode: Columns) -> Columns:
    """An episode without what another base policy made, so that it is computed anew."""
    made = {BASE_ACTION, POLICY_FEATURES, *GRIPPER_LABELS}
    return {name: values for name, values in episode.items() if name not in made}


def with_labels_of(
    episode: Columns, told: Mapping[str, Any], grippers: Mapping[str, Any]
) -> Columns:
    """An episode without the gripper labels that mean something else here.

    Args:
        episode: with labels, or without.
        told: `gripper_meaning` where it was recorded; where that is not told, the grippers were
            these, a choice to hold sent the base policy's command, and the penalty is not known.
        grippers: `gripper_meaning` here.
    """
    there = {**grippers, "compose_base": True, "grasp_penalty": None, **told}
    differ = {name for name, value in there.items() if grippers.get(name) != value}
    stale = {DISCRETE_ACTION} if differ & {"dims", "compose_base"} else set()
    stale |= {DISCRETE_PENALTY} if differ & {"dims", "grasp_penalty"} else set()
    return {name: values for name, values in episode.items() if name not in stale}


def gripper_meaning(config: OffPolicyConfig) -> dict[str, Any]:
    """What gripper labels depend on beside the commands; nothing where there are none."""
    params: Any = config
    if getattr(params, "gripper", None) != "discrete":
        return {}
    return {
        "dims": list(params.gripper_dims),
        "compose_base": params.compose_base,
        "grasp_penalty": params.grasp_penalty,
    }


def policy_identity(config: ResidualSACConfig) -> dict[str, Any]:
    """The base policy and how it is asked: equal ones give equal base actions."""
    policy = config.base_policy_options
    return {
        "fingerprint": base_policy_fingerprint(policy.type, policy.path),
        "loader": policy.loader(),
        "prefetch": policy.prefetch,
    }
