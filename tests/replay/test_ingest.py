"""What is not finite never enters a ring."""

import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import FEATURES, GAMMA, join, lengths, make_episode, schema

from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

FLOATS = (
    "observation.state",
    "observation.environment_state",
    "base_action",
    "action",
    "reward",
    "residual_scale",
    "discrete_action",
    "discrete_penalty",
    FEATURES,
)
LENGTHS = (3, 1, 5)


def batch():
    episodes = [
        make_episode(k, length, True, features=True, extras=True)
        for k, length in enumerate(LENGTHS)
    ]
    return join(episodes), lengths(episodes)


@settings(max_examples=100)
@given(
    st.sampled_from(FLOATS),
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.integers(0, sum(LENGTHS) + len(LENGTHS) - 1),
    st.integers(0, 2**31),
)
def test_the_column_episode_and_row_are_named_and_nothing_is_stored(name, value, row, element):
    ring = FrameRing(schema(features="encoder", extras=True), 40)
    columns, episode_lengths = batch()
    ring.add_episodes(columns, episode_lengths, GAMMA)
    before = ring.observations().clone()
    flat = columns[name].reshape(len(columns[name]), -1)
    flat[row, element % flat.shape[1]] = value
    places = [(k, t) for k, length in enumerate(LENGTHS) for t in range(length + 1)]
    episode, t = places[row]
    with pytest.raises(ValueError, match=rf"'{name}' holds .* in episode {episode}, row {t};"):
        ring.add_episodes(columns, episode_lengths, GAMMA)
    assert ring.observations().tolist() == before.tolist()
    assert ring.episode_lengths == list(LENGTHS)


def test_a_double_that_overflows_float32_is_refused_too():
    columns = schema().columns | {"force": ColumnSpec((2,), "float64")}
    ring = FrameRing(ReplaySchema(columns, schema().observation_keys), 10)
    episode = make_episode(0, 3, True) | {"force": np.zeros((4, 2))}
    ring.add_episodes(episode, [3], GAMMA)
    episode["force"][2, 1] = 1e39
    with pytest.raises(ValueError, match=r"'force' holds .* in episode 0, row 2;"):
        ring.add_episodes(episode, [3], GAMMA)


@pytest.mark.parametrize(
    ("rewards", "terminated", "returns"),
    [
        ([-5, -5, -5], False, [-500, -500, -500]),  # -5 / (1 - 0.99)
        ([-5, -5, -5], True, [-14.8505, -9.95, -5]),  # no value follows
        ([-5, -5, 5], False, [-5.0495, -0.05, 5]),
        ([-5, -4, -5], False, [-13.8605, -8.95, -5]),
        ([0, 0], False, [0, 0]),
        ([2, 2], False, [3.98, 2]),
    ],
)
def test_what_calql_bounds_the_value_of_a_failure_by_does_not_end_where_it_was_cut(
    rewards, terminated, returns
):
    ring = FrameRing(schema(), 10)
    episode = make_episode(0, len(rewards), terminated) | {"reward": np.float32([*rewards, 0])}
    ring.add_episodes(episode, [len(rewards)], gamma=0.99)
    found = ring.column("mc_return", ring.start_rows()).tolist()
    assert found == pytest.approx(returns, rel=1e-5)


def test_undiscounted_failures_are_worth_what_they_cost():
    ring = FrameRing(schema(), 10)
    episode = make_episode(0, 2, False) | {"reward": np.float32([-5, -5, 0])}
    ring.add_episodes(episode, [2], gamma=1.0)
    assert ring.column("mc_return", ring.start_rows()).tolist() == [-10, -5]
