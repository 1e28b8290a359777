"""What the chunk cache hands back of the chunk being played."""

import numpy as np
import pytest

from pld_ray.config import ConfigError, PolicyConfig, TrainConfig
from pld_ray.policies import ChunkCache, Prediction


class Joining:
    """Step t of a chunk is x + t, in the policy's own units a hundredth of it; keeps requests."""

    action_dim, fingerprint, rtc = 1, "", True
    input_features = {"x": (1,)}

    def __init__(self, n_action_steps=3, chunk_size=5):
        self.n_action_steps, self.chunk_size = n_action_steps, chunk_size
        self.asked = []

    def infer(self, observations, tasks, env_ids, seeds=None, leftovers=None):
        self.asked.append((list(env_ids), leftovers))
        chunks = observations["x"][:, None] + np.arange(self.chunk_size)[None, :, None]
        return Prediction(chunks.astype(np.float32), normalized=(chunks / 100).astype(np.float32))


def play(cache, steps, env_ids=(0,), start=0):
    """Observations of env e at step t are 100 t + 1000 e; actions of each step."""
    x = [np.array([[100 * t + 1000 * e] for e in env_ids]) for t in range(start, start + steps)]
    return [cache.act({"x": one}, [""] * len(env_ids), env_ids)[:, 0].tolist() for one in x]


def given(policy):
    """Of each request: environment -> its leftover in environment units, or None for none."""
    return [
        {
            env: np.rint(100 * one[~np.isnan(one[:, 0]), 0]).tolist()
            for env, one in zip(envs, leftovers, strict=True)
        }
        if leftovers is not None
        else dict.fromkeys(envs)
        for envs, leftovers in policy.asked
    ]


def test_a_prefetched_chunk_is_given_the_present_action_and_all_that_follows():
    policy = Joining()
    cache = ChunkCache(policy, 1, prefetch=True)
    # the first chunk begins with its action 0, later ones with their action 1
    assert play(cache, 9) == [[0], [1], [2], [201], [202], [203], [501], [502], [503]]
    assert given(policy) == [
        {0: None},
        {0: [2, 3, 4]},  # asked for at step 2, which plays 2
        {0: [203, 204]},
        {0: [503, 504]},
    ]


def test_without_a_spare_action_the_present_one_is_all_there_is():
    policy = Joining(n_action_steps=5)
    play(ChunkCache(policy, 1, prefetch=True), 10)
    assert given(policy) == [{0: None}, {0: [4]}, {0: [404]}]


def test_every_environment_has_its_own_and_none_after_a_reset():
    policy = Joining()
    cache = ChunkCache(policy, 2, prefetch=True)
    play(cache, 4, (0, 1))  # both begin their second chunk
    cache.reset([1])
    assert play(cache, 3, (0, 1), start=4) == [[202, 1400], [203, 1401], [601 - 100, 1402]]
    assert given(policy)[1:] == [
        {0: [2, 3, 4], 1: [1002, 1003, 1004]},
        {1: None},
        {0: [203, 204]},
        {1: [1402, 1403, 1404]},
    ]
    cache.reset([0, 1])
    play(cache, 1, (0, 1), start=7)
    assert given(policy)[-1] == {0: None, 1: None}


def test_a_leftover_does_not_change_after_it_was_handed_over():
    policy = Joining()
    cache = ChunkCache(policy, 1, prefetch=True)
    play(cache, 3)
    leftover = policy.asked[-1][1]
    before = leftover.copy()
    play(cache, 6, start=3)
    np.testing.assert_array_equal(leftover, before)


def test_without_prefetch_there_is_nothing_to_continue():
    with pytest.raises(ValueError, match=r"set policy.prefetch=true, or policy.rtc=false"):
        ChunkCache(Joining(), 1)


def test_the_option_needs_prefetch_and_reaches_the_policy():
    TrainConfig(policy=PolicyConfig(rtc=True, prefetch=True)).validate()
    with pytest.raises(
        ConfigError, match=r"policy.rtc=true: must be false without policy.prefetch"
    ):
        TrainConfig(policy=PolicyConfig(rtc=True)).validate()
    assert PolicyConfig(rtc=True).loader() == {"rtc": True}
    assert PolicyConfig().loader() == {}
