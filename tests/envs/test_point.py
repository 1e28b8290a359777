"""The point of the smoke sweep and the fault tests."""

import pathlib

import numpy as np
import pytest
import yaml

from envs.point import PointEnv

SMOKE = pathlib.Path(__file__).parents[2] / "experiments" / "sweeps" / "smoke.yaml"


def chance(**kwargs):
    """Share of 150 episodes in which uniform actions reach the goal."""
    env, rng = PointEnv(**kwargs), np.random.default_rng(0)
    successes = 0
    for state in range(150):
        env.reset(options={"init_state_id": state})
        over = False
        while not over:
            _, _, reached, truncated, _ = env.step(rng.uniform(-1, 1, 7))
            over = reached or truncated
        successes += reached
    return successes / 150


def test_in_the_smoke_sweep_chance_finds_the_goal_often_enough_to_learn_from_and_seldom_else():
    kwargs = yaml.safe_load(SMOKE.read_text())["set"]["env.kwargs"]
    assert 0.1 < chance(**kwargs) < 0.3
    assert chance() < 0.05


@pytest.mark.parametrize("side", [0.2, 1.0])
def test_start_and_goal_lie_in_the_cube(side):
    env = PointEnv(side=side)
    positions = []
    for state in range(150):
        observation, _ = env.reset(options={"init_state_id": state})
        start = observation["observation.state"][:3]
        positions += [start, start + observation["observation.environment_state"][:3]]
    assert 0 <= np.min(positions) < 0.05 * side
    assert 0.95 * side < np.max(positions) <= side
