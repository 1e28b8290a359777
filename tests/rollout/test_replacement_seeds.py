"""Environments that are replaced together go on apart, and other runs' with other placements."""

from __future__ import annotations

import numpy as np
import pytest
from fragile import FragileEnv

from pld_ray.rollout.env_group import Command, InProcessEnvs
from pld_ray.rollout.subprocess_envs import SubprocessEnvs

NUM_ENVS = 3
RAISE = Command(np.full(3, 0.75, dtype=np.float32))


def in_process():
    return InProcessEnvs([FragileEnv] * NUM_ENVS)


def subprocesses():
    return SubprocessEnvs([FragileEnv] * NUM_ENVS, preload=[])


def seeds_of_replacements(make, first):
    """Seeds with which environments go on that all fail once; `first` are their own."""
    group = make()
    try:
        group.run([Command(seed=seed) for seed in first])
        outcomes = group.run([RAISE] * NUM_ENVS)
        assert all("the arm fell off" in outcome.failure for outcome in outcomes)
        return [outcome.info["seed"] for outcome in group.run([Command()] * NUM_ENVS)]
    finally:
        group.close()


@pytest.mark.parametrize("make", [in_process, subprocesses])
def test_replacements_of_a_first_failure_have_seeds_of_their_run_and_place(make):
    one, again, other = (
        seeds_of_replacements(make, first) for first in ([1, 2, 3], [1, 2, 3], [4, 5, 6])
    )
    assert one == again
    assert len({*one, *other}) == 2 * NUM_ENVS


@pytest.mark.parametrize("make", [in_process, subprocesses])
def test_what_never_had_a_seed_goes_on_by_chance(make):
    assert seeds_of_replacements(make, [None] * NUM_ENVS) == [None] * NUM_ENVS


@pytest.mark.parametrize("make", [in_process, subprocesses])
def test_only_the_first_episode_of_a_replacement_has_a_seed_from_here(make):
    group = make()
    try:
        group.run([Command(seed=seed) for seed in (1, 2, 3)])
        group.run([RAISE] * NUM_ENVS)
        first, second = (group.run([Command()] * NUM_ENVS) for _ in range(2))
    finally:
        group.close()
    assert None not in [outcome.info["seed"] for outcome in first]
    assert [outcome.info["seed"] for outcome in second] == [None] * NUM_ENVS


def test_a_replacement_follows_from_the_seed_that_its_environment_had_last():
    group = in_process()
    for first in (4, 1):
        group.run([Command(seed=first + i) for i in range(NUM_ENVS)])
    group.run([RAISE] * NUM_ENVS)
    seeds = [outcome.info["seed"] for outcome in group.run([Command()] * NUM_ENVS)]
    assert seeds == seeds_of_replacements(in_process, [1, 2, 3])
