"""History, features and prefetch of the chunk cache, with a policy whose chunks one can compute."""

import functools

import numpy as np
import pytest

from pld_ray.policies import ChunkCache, Prediction


class Counting:
    """Step t of a chunk is the newest x plus t; features are the oldest x and the environment."""

    action_dim, fingerprint = 1, ""
    input_features = {"x": (1,)}
    feature_dim = 2

    def __init__(self, n_action_steps=3, chunk_size=4, n_obs_steps=1):
        self.n_action_steps, self.chunk_size = n_action_steps, chunk_size
        self.n_obs_steps = n_obs_steps
        self.asked = []

    def infer(self, observations, tasks, env_ids, seeds=None):
        x = observations["x"]
        self.asked.append((x[..., 0].tolist(), env_ids, seeds))
        window = x if self.n_obs_steps > 1 else x[:, None]
        chunks = window[:, -1:] + np.arange(self.chunk_size)[None, :, None]
        features = np.stack([window[:, 0, 0], env_ids], axis=1)
        return Prediction(chunks.astype(np.float32), features.astype(np.float32))


class Asynchronous(Counting):
    """Computes a submitted request only when its result is asked for."""

    def __init__(self, **options):
        super().__init__(**options)
        self.cancelled = 0

    def submit(self, observations, tasks, env_ids, seeds=None):
        policy = self

        class Pending:
            @functools.cache  # noqa: B019
            def result(self):
                return policy.infer(observations, tasks, env_ids, seeds)

            def cancel(self):
                policy.cancelled += 1

        return Pending()


def play(cache, steps, env_ids=(0,), start=0):
    """Observations of env e at step t are 100 t + 1000 e; actions of each step."""
    ids = list(env_ids)
    actions = []
    for t in range(start, start + steps):
        x = np.array([[100.0 * t + 1000.0 * e] for e in ids], dtype=np.float32)
        actions.append(cache.act({"x": x}, [""] * len(ids), ids)[:, 0].tolist())
    return actions if len(ids) > 1 else [action for (action,) in actions]


def test_without_prefetch_a_chunk_comes_from_the_present_observation():
    assert play(ChunkCache(Counting(), 1), 7) == [0, 1, 2, 300, 301, 302, 600]


@pytest.mark.parametrize("policy_class", [Counting, Asynchronous])
def test_a_prefetched_chunk_comes_from_one_step_before_without_its_first_action(policy_class):
    # asked at t = 2 with 200: 200 was for t = 2, so 201 is for t = 3
    cache = ChunkCache(policy_class(), 1, prefetch=True)
    assert play(cache, 9) == [0, 1, 2, 201, 202, 203, 501, 502, 503]
    assert cache.num_inferences == cache.num_rows == 4


@pytest.mark.parametrize("policy_class", [Counting, Asynchronous])
def test_a_chunk_without_a_spare_action_is_played_one_shorter(policy_class):
    cache = ChunkCache(policy_class(chunk_size=3), 1, prefetch=True)
    assert play(cache, 7) == [0, 1, 2, 201, 202, 401, 402]


def test_one_action_per_chunk_can_be_prefetched_if_there_is_a_second():
    cache = ChunkCache(Counting(n_action_steps=1, chunk_size=2), 1, prefetch=True)
    assert play(cache, 4) == [0, 1, 101, 201]
    with pytest.raises(ValueError, match="prefetch drops the first action"):
        ChunkCache(Counting(n_action_steps=1, chunk_size=1), 1, prefetch=True)


def test_reset_drops_what_is_on_its_way():
    policy = Asynchronous()
    cache = ChunkCache(policy, 2, prefetch=True)
    play(cache, 3, (0, 1))  # one request for both is on its way
    cache.reset([0])
    assert policy.cancelled == 0  # the other still waits for it
    assert play(cache, 3, (0, 1), start=3) == [[300, 1201], [301, 1202], [302, 1203]]
    cache.reset([0, 1])
    assert policy.cancelled == 1
    assert play(cache, 2, (0, 1), start=6) == [[600, 1600], [601, 1601]]


def test_noise_seeds_do_not_depend_on_when_an_answer_is_computed():
    def seeds(policy, company):
        cache = ChunkCache(policy, 3, seed=5, prefetch=True)
        cache.reset(company)
        play(cache, 12, company)
        asked = [dict(zip(envs, seeds, strict=True)) for _, envs, seeds in policy.asked]
        return [row[1] for row in asked if 1 in row]

    alone, together = seeds(Counting(), [1]), seeds(Asynchronous(), [2, 1, 0])
    assert len(set(alone)) == 5  # the fifth was asked for at the last step
    assert alone[:4] == together


def test_a_failed_inference_leaves_the_cache_as_it_was():
    class Failing(Counting):
        fail = False

        def infer(self, *request, **named):
            if self.fail:
                raise ConnectionError("gone")
            return super().infer(*request, **named)

    policy = Failing(n_obs_steps=2)
    cache = ChunkCache(policy, 1)
    play(cache, 3)
    policy.fail = True
    with pytest.raises(ConnectionError):
        play(cache, 1, start=3)
    policy.fail = False
    assert play(cache, 2, start=3) == [300, 301]
    assert policy.asked[-1][0] == [[200.0, 300.0]]


def test_history_is_kept_inside_chunks_and_begins_with_the_first_observation():
    policy = Counting(n_action_steps=3, n_obs_steps=3)
    cache = ChunkCache(policy, 2)
    play(cache, 4, (0, 1))
    cache.reset([0])
    play(cache, 1, (0,), start=4)
    play(cache, 1, (0,), start=5)
    play(cache, 3, (1,), start=4)
    windows = [window for window, _, _ in policy.asked]
    assert windows == [
        [[0, 0, 0], [1000, 1000, 1000]],
        [[100, 200, 300], [1100, 1200, 1300]],
        [[400, 400, 400]],
        [[1400, 1500, 1600]],
    ]


def test_features_are_those_of_the_chunk_that_is_played():
    cache = ChunkCache(Counting(), 2, prefetch=True)
    play(cache, 3, (0, 1))
    np.testing.assert_array_equal(cache.features, [[0, 0], [1000, 1]])
    play(cache, 1, (0, 1), start=3)  # the prefetched one begins
    np.testing.assert_array_equal(cache.features, [[200, 0], [1200, 1]])
    assert cache.features.dtype == np.float32


def test_a_missing_observation_is_named():
    with pytest.raises(ValueError, match=r"needs \['x'\]; got \['y'\]"):
        ChunkCache(Counting(), 1).act({"y": np.zeros((1, 1))}, [""])


def test_a_chunk_that_is_begun_anew_drops_what_is_on_its_way():
    policy = Asynchronous()
    cache = ChunkCache(policy, 1, prefetch=True)
    play(cache, 3)  # the last action: the next chunk is on its way
    assert cache.replan({"x": np.float32([[250]])}, [""], [0]).item() == 250
    assert policy.cancelled == 1
    assert play(cache, 3, start=3) == [251, 252, 401]


def test_of_a_failed_request_ahead_nobody_waits_any_more():
    class Failing(Asynchronous):
        fail = False

        def infer(self, *request, **named):
            if self.fail:
                raise ConnectionError("gone")
            return super().infer(*request, **named)

    policy = Failing()
    cache = ChunkCache(policy, 2, prefetch=True)
    play(cache, 3, (0, 1))  # one request for both is on its way
    policy.fail = True
    with pytest.raises(ConnectionError):
        play(cache, 1, (0, 1), start=3)
    policy.fail = False
    assert play(cache, 2, (0, 1), start=3) == [[300, 1300], [301, 1301]]
