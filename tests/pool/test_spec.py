"""What a pool is made of is checked before any actor starts; no Ray here."""

import pytest
import torch
from chunked_fixtures import D, H, make_update

from pld_ray.policies import EMBEDDED_ACT
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.pool import BasePolicyPool, PoolSpec
from pld_ray.pool.spec import resolve


def test_a_bad_checkpoint_is_refused_before_any_actor_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a directory"):
        BasePolicyPool(PoolSpec(arguments={"path": str(tmp_path / "nothing")}))
    with pytest.raises(ValueError, match=r"replicas=0: must be a whole number in \[1, 1024\]"):
        BasePolicyPool(PoolSpec(replicas=0))
    with pytest.raises(ValueError, match="max_replicas=2: must be null or at least replicas=3"):
        BasePolicyPool(PoolSpec(replicas=3, max_replicas=2))
    with pytest.raises(ValueError, match=r"deadline_s=0: must be a number in \(0, 1e6\] s"):
        BasePolicyPool(PoolSpec(deadline_s=0))


def test_arguments_mean_the_same_on_every_node(monkeypatch):
    monkeypatch.chdir(EMBEDDED_ACT.parent)
    here = PoolSpec(arguments={"path": EMBEDDED_ACT.name, "rtc": False}, num_gpus_per_replica=0.5)
    assert here.located().arguments == {"path": str(EMBEDDED_ACT), "rtc": False, "device": "cuda"}
    assert PoolSpec().located().arguments == {"path": None, "device": "cpu"}
    with pytest.raises(ValueError, match=r"make_policy 'no_colon' cannot be loaded"):
        PoolSpec(make_policy="no_colon").located()
    elsewhere = PoolSpec(make_policy="on_the_nodes_only:make")
    assert elsewhere.located() is elsewhere


def test_an_exported_policy_is_the_base_policy_of_a_pool(tmp_path, monkeypatch):
    networks = make_update(fill=False).networks
    write_policy(tmp_path / "policy", ChunkPolicy(networks, {"observation.state": (D,)}))
    arguments = {"path": str(tmp_path / "policy"), "n_action_steps": 2}
    spec = PoolSpec(arguments=arguments).located()
    policy = resolve(spec.make_policy)(**spec.arguments)
    assert (policy.n_action_steps, policy.chunk_size) == (2, H)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = PoolSpec(arguments=arguments, num_gpus_per_replica=0.5).located()
    with pytest.raises(ValueError, match=r"device 'cuda': no CUDA device here"):
        resolve(spec.make_policy)(**spec.arguments)


def test_policies_are_named_by_module_and_function():
    assert resolve("json:dumps")(1) == "1"
    for wrong in ("json", "json:nothing", "no_such_module:make", ":"):
        with pytest.raises(ValueError, match="give 'module:function'"):
            resolve(wrong)


def test_a_pool_may_have_as_many_replicas_at_most_as_at_least():
    PoolSpec(replicas=3, max_replicas=3).check()
