"""Two learners with half a batch each make the step of one learner with the whole batch."""

import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from update_fixtures import BATCH, make_params, make_update

from pld_ray.algorithm.shards import Shard

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
import torch.distributed.nn  # if an optimiser imports it later, its defaults keep the group alive
from safetensors.torch import load_file, save_file
folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
sys.path[:0] = [sys.argv[3], sys.argv[3] + "/residual"]
from update_fixtures import BATCH
from test_shards import make_half
from pld_ray.algorithm.shards import Shard
shard = Shard.of_this_process()
batch = load_file(f"{folder}/batch.safetensors")
half = BATCH // 2
update = make_half(shard.all_reduce)
update.step({k: v[rank * half : (rank + 1) * half] for k, v in batch.items()})
assert shard.all_true(True) and not shard.all_true(rank == 0)
rows = shard.gather(torch.full((rank + 1, 2), float(rank)))
assert rows.tolist() == [[0, 0], [1, 1], [1, 1]]
weights = {k: v.contiguous() for k, v in update.networks.state_dict().items()}
save_file(weights, f"{folder}/rank{rank}.safetensors")
dist.destroy_process_group()
names = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
assert not any("gloo" in name for name in names), "its threads may abort a process that ends"
"""


def make_half(all_reduce=None):
    # at beta = 0 and without noise in the loss, no random number matters
    params = make_params(residual_scale=0.0, critic_actor_update_ratio=10**6)
    return make_update(params, all_reduce=all_reduce)


def test_the_average_of_two_halves_is_the_whole(tmp_path):
    import pathlib

    whole = make_half()
    batch = whole.replay.sample(BATCH, 1, 0.9)
    save_file({k: v.contiguous() for k, v in batch.items()}, tmp_path / "batch.safetensors")
    here = pathlib.Path(__file__).parent
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(rank), str(here)])
        for rank in range(2)
    ]
    assert [p.wait(timeout=120) for p in processes] == [0, 0]
    one, two = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2))
    whole.step(batch)
    for name, value in whole.networks.state_dict().items():
        assert torch.equal(one[name], two[name]), name
        np.testing.assert_allclose(one[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_single_learner_needs_no_others():
    shard = Shard.of_this_process()
    assert shard == Shard(0, 1)
    assert shard.all_reduce is None
    assert shard.all_true(True)
    rows = torch.ones(2, 3)
    assert shard.gather(rows) is rows
    assert shard.name("replay") == "replay"
    assert Shard(1, 2).seed(5) != shard.seed(5) == 5
