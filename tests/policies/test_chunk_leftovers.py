"""What the chunk cache hands back of the chunk being played, and how leftovers travel."""

import numpy as np
import pytest

from pld_ray.config import ConfigError, PolicyConfig, TrainConfig
from pld_ray.jobs.build import policy_loader
from pld_ray.policies import ChunkCache
from pld_ray.policies.leftovers import checked, grouped, packed, unpacked
from pld_ray.policies.protocol import PolicyDescription
from pld_ray.pool.batching import Request, merged
from pld_ray.pool.replica import warm_up


class Joining:
    """Step t of a chunk is x + t, in the policy's own units a hundredth of it; keeps requests."""

    action_dim, fingerprint, rtc = 1, "", True
    input_features = {"x": (1,)}

    def __init__(self, n_action_steps=3, chunk_size=5):
        self.n_action_steps, self.chunk_size = n_action_steps, chunk_size
        self.asked = []

    def reset(self, env_ids):
        pass

    def infer_with_leftovers(self, observations, tasks, env_ids, seeds=None, leftovers=None):
        self.asked.append((list(env_ids), leftovers))
        chunks = observations["x"][:, None] + np.arange(self.chunk_size)[None, :, None]
        return chunks.astype(np.float32), None, (chunks / 100).astype(np.float32)


def play(cache, steps, env_ids=(0,), start=0):
    """Observations of env e at step t are 100 t + 1000 e; actions of each step."""
    x = [np.array([[100 * t + 1000 * e] for e in env_ids]) for t in range(start, start + steps)]
    return [cache.act({"x": one}, [""] * len(env_ids), env_ids)[:, 0].tolist() for one in x]


def given(policy):
    """Of each request: environment -> its leftover in environment units, or None for none."""
    return [
        dict(zip(envs, [np.rint(100 * one[:, 0]).tolist() for one in leftovers], strict=True))
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
    (leftover,) = policy.asked[-1][1]
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
    assert policy_loader(PolicyConfig(rtc=True)) == {"rtc": True}
    assert policy_loader(PolicyConfig()) == {}


def test_both_paths_are_warmed_up():
    policy = Joining()
    warm_up(policy, PolicyDescription.of(policy), max_batch_size=2)
    shapes = [leftovers and [one.shape for one in leftovers] for _, leftovers in policy.asked]
    assert shapes == [None, [(5, 1)], None, [(5, 1)] * 2]


def leftovers_of(*lengths):
    return [np.full((n, 2), i, dtype=np.float32) if n else None for i, n in enumerate(lengths)]


def test_rows_of_one_length_up_to_the_horizon_share_a_call():
    groups = list(grouped(leftovers_of(4, 0, 7, 2, 3, 0), 6, batch_rows=2, execution_horizon=3))
    assert [rows.tolist() for rows, _ in groups] == [[1, 5], [3], [0, 2], [4]]
    assert [None if one is None else one[:, :, 0].tolist() for _, one in groups] == [
        None,
        [[3, 3]],
        [[0, 0, 0], [2, 2, 2]],
        [[4, 4, 4]],
    ]
    plain = list(grouped(None, 5, batch_rows=2, execution_horizon=3))
    assert [(rows.tolist(), one) for rows, one in plain] == [
        ([0, 1], None),
        ([2, 3], None),
        ([4], None),
    ]


def test_requests_with_and_without_leftovers_share_a_batch():
    def request(row, leftovers):
        asked = ({"x": np.zeros((2, 1))}, ["", ""], [row, row + 1], [0, 0], "", 0.0, 1.0)
        return Request(*asked, answer=None, leftovers=leftovers)

    one, two = np.ones((2, 1)), np.ones((1, 1))
    batch = [request(0, None), request(2, [one, None]), request(4, [None, two])]
    assert merged(batch)["leftovers"] == [None, None, one, None, None, two]
    assert "leftovers" not in merged(batch[:1])  # policies without rtc know no such argument


@pytest.mark.parametrize("lengths", [(3, 0, 1), (0, 0), (2,), ()])
def test_leftovers_travel_as_one_array(lengths):
    sent = leftovers_of(*lengths)
    header, arrays = packed(sent)
    assert header == list(lengths)
    received = unpacked(header, arrays)
    assert not arrays
    for ours, theirs in zip(received, sent, strict=True):
        assert (ours is None) == (theirs is None)
        np.testing.assert_array_equal(ours, theirs)
    assert packed(None) == (None, {})
    assert unpacked(None, {}) is None


def test_what_does_not_fit_is_refused():
    _, arrays = packed(leftovers_of(3, 1))
    for lengths in ([3, 2], [5, -1], []):
        with pytest.raises(ValueError, match="do not fit the array"):
            unpacked(lengths, dict(arrays))
    assert checked([None, None], 2, 5, 2) is None
    assert checked([[[1, 2]], None], 2, 5, 2)[0].dtype == np.float32
    with pytest.raises(ValueError, match="got 1 leftovers for 2 rows"):
        checked([None], 2, 5, 2)
    with pytest.raises(ValueError, match=r"leftover of row 1 has shape \(6, 2\); expected 1 to 5"):
        checked(leftovers_of(0, 6), 2, 5, 2)
