"""Real-time chunking through a pool: a vision-language policy in an actor of its own."""

import numpy as np
import pytest

from pld_ray.policies import ChunkCache
from pld_ray.pool import BasePolicyPool, PoolSpec


@pytest.mark.chaos  # LeRobot's start in another process is slow
@pytest.mark.usefixtures("ray_cluster")
def test_guided_chunks_equal_an_inline_policys(tiny_directory, load_tiny):
    """Environments with no, a long and a short leftover share batches."""
    from tiny_policies import make_observations, make_tasks

    directory = tiny_directory("pi0")
    options = {"tokenizer_path": str(directory.parent / "tokenizer"), "rtc": True}
    spec = PoolSpec(
        arguments={"directory": str(directory), **options},
        make_policy="tiny_policies:load_policy",
        num_cpus_per_replica=0.5,
    )
    pool = BasePolicyPool(spec)
    played = []
    for policy in (load_tiny(directory, **options), pool.client()):
        cache = ChunkCache(policy, num_envs=3, prefetch=True)
        actions = []
        for t in range(10):
            if t == 5:
                cache.reset([1])
            actions.append(cache.act(make_observations(3, t), make_tasks(3)))
        played.append(np.stack(actions))
    np.testing.assert_array_equal(played[0], played[1])
    with pytest.raises(ValueError, match=r"leftovers of shape \(1, 2, 9\); expected 1 rows of 6"):
        pool.client().infer(make_observations(1, 0), [""], [0], [0], np.zeros((1, 2, 9)))
    pool.stop()
