"""Real-time chunking through a pool: a vision-language policy in an actor of its own."""

import numpy as np
import pytest
from tiny_policies import make_observations, make_tasks

from pld_ray.policies import ChunkCache
from pld_ray.pool import BasePolicyPool


@pytest.mark.chaos  # LeRobot's start in another process is slow
@pytest.mark.parametrize("sockets", [True, False])
@pytest.mark.usefixtures("ray_cluster")
def test_guided_chunks_equal_an_inline_policys(tiny_directory, load_tiny, sockets):
    """Environments with no, a long and a short leftover share batches."""
    directory = tiny_directory("pi0")
    options = {"tokenizer_path": str(directory.parent / "tokenizer"), "rtc": True}
    pool = BasePolicyPool(
        make_policy="tiny_policies:load_policy",
        policy_kwargs={"directory": str(directory), **options},
        num_cpus=0.5,
        sockets=sockets,
    )
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
    request = (make_observations(1, 0), [""], [0], [0])
    with pytest.raises(ValueError, match=r"leftover of row 0 has shape \(2, 9\)"):
        pool.client().infer_with_leftovers(*request, [np.zeros((2, 9))])
    pool.stop()
