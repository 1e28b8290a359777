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
