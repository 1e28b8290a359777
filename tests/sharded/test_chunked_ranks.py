"""Q-chunking with a sharded SmolVLA: two processes against one, and from one number to another.

Three micro-batches for two processes: one has two, the other one and one that counts for nothing.
"""

import pytest
import torch
from chunked_ranks import difference, networks_and_moments, trained, two_first
from several_ranks import on_ranks
from tiny_policies import save_policy

from pld_ray.algorithm.optimizers import make_adams
from pld_ray.files.state_tree import load_tree
from pld_ray.sharded.chunked import take_optimizer_state
from pld_ray.sharded.ranks import Ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    save_policy("smolvla", root)
    trained(Ranks(), root, "one", 3)
    trained(Ranks(), root, "one-bptt", 1, improvement="bptt")
    on_ranks(2, two_first, root)
    trained(Ranks(), root, "one-middle", 1, "two-first")
    on_ranks(2, trained, root, "two-last", 1, "one-middle")
    return root


def apart(folder, one, other):
    return difference(networks_and_moments(folder, one), networks_and_moments(folder, other))


def test_two_ranks_are_one_process_with_the_same_micro_batches(folder):
    assert apart(folder, "one", "two") <= 1e-6
    assert apart(folder, "two-first", "two") > 1e-5  # something was learnt
    one, two = (load_tree(folder / name) for name in ("one", "two"))
    assert two["share"] <= 0.6
    assert one["share"] == 1.0
    assert two["means"] == pytest.approx(one["means"], rel=1e-5)


def test_a_flow_that_climbs_through_its_steps_does_so_in_parts(folder):
    assert apart(folder, "one-bptt", "two-bptt") <= 1e-6
    assert apart(folder, "one-bptt", "two-first") > 1e-5


def test_any_number_of_ranks_goes_on_from_the_state_of_another(folder):
    assert apart(folder, "two", "two-last") <= 1e-6


def test_the_state_of_a_fused_optimiser_lies_where_its_parameters_are():
    """The device `meta` stands for a GPU, where a fused step refuses a count on the CPU."""
    here, there = (torch.nn.Parameter(torch.ones(2, 2, device=d)) for d in ("cpu", "meta"))
    first, second = (
        make_adams({"actor": [p]}, {"actor": 1e-3}, 0.0)["actor"] for p in (here, here)
    )
    here.grad = torch.ones(2, 2)
    first.step()
    saved = first.state_dict()
    second.param_groups[0]["params"] = [there]
    take_optimizer_state(second, [there], saved)
    devices = {name: value.device.type for name, value in second.state[there].items()}
    assert devices == {"step": "meta", "exp_avg": "meta", "exp_avg_sq": "meta"}
