import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.rollout.episode import (
    EpisodeBuilder,
    concatenate_episodes,
    split_episodes,
)


def episode(length, start=0.0):
    builder = EpisodeBuilder()
    for t in range(length):
        observation = {
            "observation.state": np.full((2, 4), start + t, dtype=np.float32),
            "base_action": np.full((2, 3), start + t + 0.5, dtype=np.float32),
        }
        action = np.full(3, start + t, dtype=np.float32)
        builder.add(observation, 1, action, 1.0, t == length - 1, False, residual_scale=0.3)
    final = {
        "observation.state": np.full((2, 4), start + length, dtype=np.float32),
        "base_action": np.full((2, 3), start + length + 0.5, dtype=np.float32),
    }
    return builder.finish(final, 1, success=True)


def test_final_frame_follows_the_last_transition():
    columns = episode(3)
    assert columns["observation.state"][:, 0].tolist() == [0, 1, 2, 3]
    assert columns["base_action"][:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert columns["reward"].tolist() == [1, 1, 1, 0]
    assert columns["terminated"].tolist() == [False, False, True, False]
    assert columns["success"].tolist() == [False, False, True, False]
    assert columns["action"][-1].tolist() == [0, 0, 0]
    assert columns["residual_scale"].dtype == np.float32


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_concatenating_and_splitting_are_inverse(lengths):
    episodes = [episode(n, start=10.0 * i) for i, n in enumerate(lengths)]
    columns, found = concatenate_episodes(episodes)
    assert found == lengths
    assert len(columns["reward"]) == sum(lengths) + len(lengths)
    for original, back in zip(episodes, split_episodes(columns, found), strict=True):
        for key, value in original.items():
            np.testing.assert_array_equal(back[key], value)
