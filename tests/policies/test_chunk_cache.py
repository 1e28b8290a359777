import numpy as np
import pytest
from tiny_policies import rows_of

from pld_ray.policies import ChunkCache, Prediction, load_base_policy
from pld_ray.policies.protocol import PolicyError


@pytest.fixture(scope="module")
def policy(act_directory):
    return load_base_policy(act_directory)


def test_a_chunk_is_played_open_loop_and_costs_one_inference(policy, act_observations):
    cache = ChunkCache(policy, num_envs=2)
    cache.reset([0, 1])
    first = act_observations(2, 0)
    chunks = policy.infer(first, ["", ""], [0, 1]).chunks
    for t in range(policy.n_action_steps):
        # what is seen inside a chunk does not matter
        seen = first if t == 0 else act_observations(2, 10 + t)
        np.testing.assert_array_equal(cache.act(seen, ["", ""]), chunks[:, t])
    assert (cache.num_inferences, cache.num_rows) == (1, 2)
    later = act_observations(2, 99)
    np.testing.assert_array_equal(
        cache.act(later, ["", ""]), policy.infer(later, ["", ""], [0, 1]).chunks[:, 0]
    )
    assert (cache.num_inferences, cache.num_rows) == (2, 4)


def test_reset_drops_the_rest_of_the_old_chunk(policy, act_observations):
    cache = ChunkCache(policy, num_envs=1)
    cache.reset([0])
    old, new = act_observations(1, 0), act_observations(1, 1)
    stale = policy.infer(old, [""], [0]).chunks[0]
    cache.act(old, [""])
    cache.reset([0])
    action = cache.act(new, [""])[0]
    np.testing.assert_array_equal(action, policy.infer(new, [""], [0]).chunks[0, 0])
    assert not np.array_equal(action, stale[1])


def test_only_environments_whose_chunk_ran_out_are_inferred(policy, act_observations):
    cache = ChunkCache(policy, num_envs=3)
    cache.reset([0, 1, 2])
    first, second = act_observations(3, 0), act_observations(3, 1)
    chunks = policy.infer(first, [""] * 3, [0, 1, 2]).chunks
    cache.act(first, [""] * 3)
    cache.reset([1])
    actions = cache.act(second, [""] * 3)
    assert (cache.num_inferences, cache.num_rows) == (2, 4)
    np.testing.assert_array_equal(actions[[0, 2]], chunks[[0, 2], 1])
    fresh = policy.infer(rows_of(second, [1]), [""], [1]).chunks
    np.testing.assert_array_equal(actions[1], fresh[0, 0])


def test_a_subset_of_environments_may_act_in_any_order(policy, act_observations):
    observations = act_observations(3, 0)
    chunks = policy.infer(observations, [""] * 3, [0, 1, 2]).chunks
    cache = ChunkCache(policy, num_envs=3)
    first = cache.act(rows_of(observations, [2, 0]), ["", ""], env_ids=[2, 0])
    np.testing.assert_array_equal(first, chunks[[2, 0], 0])
    everyone = cache.act(observations, [""] * 3)
    np.testing.assert_array_equal(everyone, chunks[[0, 1, 2], [1, 0, 1]])


class Recorder:
    """A policy that answers zeros and keeps what it was asked."""

    action_dim, n_action_steps, fingerprint = 1, 2, ""
    input_features = {"x": (1,)}

    def __init__(self):
        self.seeds = []

    def infer(self, observations, tasks, env_ids, seeds=None):
        self.seeds.append(dict(zip(env_ids, seeds, strict=True)))
        return Prediction(np.zeros((len(tasks), 2, 1), dtype=np.float32))


def test_noise_seeds_depend_on_environment_episode_and_chunk_only():
    def play(company):
        policy = Recorder()
        cache = ChunkCache(policy, num_envs=3, seed=7)
        for _ in range(2):
            cache.reset(company)
            for _ in range(4):
                x = {"x": np.zeros((len(company), 1), dtype=np.float32)}
                cache.act(x, [""] * len(company), env_ids=company)
        return [asked[1] for asked in policy.seeds]

    alone, together = play([1]), play([2, 1, 0])
    assert alone == together
    assert len(set(alone)) == 4  # two episodes of two chunks


def test_wrong_calls_are_refused(policy, act_observations):
    cache = ChunkCache(policy, num_envs=2)
    with pytest.raises(ValueError, match="numbered 0 to 1"):
        cache.reset([2])
    with pytest.raises(ValueError, match="named twice"):
        cache.act(act_observations(2, 0), ["", ""], env_ids=[1, 1])
    with pytest.raises(ValueError, match="1 tasks for 2 environments"):
        cache.act(act_observations(2, 0), [""])


@pytest.mark.parametrize("prefetch", [False, True])
def test_an_answer_that_is_not_finite_is_the_policys_fault(
    act_directory, act_observations, prefetch
):
    broken = load_base_policy(act_directory)
    cache = ChunkCache(broken, num_envs=1, prefetch=prefetch)
    cache.reset([0])
    cache.act(act_observations(1, 0), [""])
    broken._policy.model.action_head.bias.data[-1] = np.nan
    observations = act_observations(1, 0)

    def play():
        for _ in range(8):
            cache.act(observations, [""])

    with pytest.raises(PolicyError, match="the policy answered with an action that is not finite"):
        play()


def test_noise_follows_the_episode_that_reset_is_told_of_and_counts_on():
    def seeds(env, *episodes, seed=9):
        policy = Recorder()
        cache = ChunkCache(policy, num_envs=3, seed=seed)
        for episode in episodes:
            cache.reset([env], [episode])
            cache.act({"x": np.zeros((1, 1))}, [""], [env])
        return [asked[env] for asked in policy.seeds]

    told = seeds(0, (5, 3), None)
    assert told == seeds(2, (5, 3), (5, 4))
    assert len({*told, *seeds(0, (6, 3), (5, 5))}) == 4
    assert seeds(0, (5, 3), seed=1) == told[:1]
    assert seeds(0, None, seed=1) != seeds(0, None)
