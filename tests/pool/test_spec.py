"""What a pool is made of is checked before any actor starts; no Ray here."""

import pytest

from pld_ray.policies import EMBEDDED_ACT
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


def test_policies_are_named_by_module_and_function():
    assert resolve("json:dumps")(1) == "1"
    for wrong in ("json", "json:nothing", "no_such_module:make", ":"):
        with pytest.raises(ValueError, match="give 'module:function'"):
            resolve(wrong)
