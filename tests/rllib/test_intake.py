"""From a rollout's columns to replay rows."""

import gymnasium as gym
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.rllib.intake import of_successes, store_episodes

episodes = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5)


@given(episodes)
def test_each_row_knows_whether_its_episode_succeeded(episodes):
    steps = [np.zeros(length + 1, bool) for length, _ in episodes]
    for step, (length, success) in zip(steps, episodes, strict=True):
        step[length - 1] = success
    got = of_successes(np.concatenate(steps), [length for length, _ in episodes])
    expected = [success for length, success in episodes for _ in range(length + 1)]
    assert got.tolist() == expected


def test_the_replay_holds_it_where_the_loss_asks_for_it():
    """And not elsewhere: replays that were saved without it stay readable."""
    box = gym.spaces.Box(-1, 1, (3,), np.float32)
    spaces = gym.spaces.Dict({"observation.state": box, "base_action": box})
    lengths, rows = [4, 2], 8
    columns = {name: np.zeros((rows, 3), np.float32) for name in (*spaces, "action")}
    columns |= {name: np.zeros(rows, np.float32) for name in ("reward", "residual_scale")}
    flags = ("terminated", "truncated", "intervened", "success")
    columns |= {name: np.zeros(rows, bool) for name in flags}
    columns["terminated"][[3, 6]] = True
    columns["success"][3] = columns["reward"][3] = True  # the first episode
    for weight in (0.0, 0.1):
        params = ResidualSACParams(residual_dims=[], success_imitation=weight)
        schema = replay_schema(ResidualNetworks.of_spaces(spaces, box, params), spaces, box)
        replay = make_replay(schema, params, torch.device("cpu"), seed=0)
        store_episodes(replay.online, columns, lengths, params, None)
        batch = replay.sample(64, 1, params.gamma)
        assert ("succeeded" in batch) == bool(weight)
        if weight:
            assert torch.equal(batch["succeeded"], batch["mc_return"] > 0)
            assert 0 < batch["succeeded"].float().mean() < 1
