"""A pool that is made in a placement group lives in it; Ray has no more here than the group."""

import dataclasses

import numpy as np
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pld_ray.config import TrainConfig
from pld_ray.config.file import load_config
from pld_ray.errors import UserError
from pld_ray.pool import BasePolicyPool, PoolError, PoolSpec
from pld_ray.pool.placement import beside_the_driver, of_replica
from pld_ray.rllib.of_run import algorithm_config

ADDING = "pool_policies:make_adding"


@pytest.fixture(scope="module", autouse=True)
def two_cpus(request):
    beside = str(request.path.parent)
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": beside}},
    )
    yield
    ray.shutdown()


@pytest.fixture
def make_group():
    made = []

    def make(*bundles):
        made.append(placement_group(list(bundles)))
        ray.get(made[0].ready())
        return made[0]

    yield make
    remove_placement_group(made[0])


@pytest.fixture
def group(make_group):
    return make_group({"CPU": 1}, {"CPU": 1})


@ray.remote(num_cpus=1)
class Driver:
    """Makes a pool, as a trial does."""

    def ask(self, spec):
        """The pool's answer to an observation."""
        pool = BasePolicyPool(spec)
        try:
            x = np.ones((1, 1), np.float32)
            return pool.client().infer({"x": x}, [""], [0], [10]).chunks[0, :, 0].tolist()
        finally:
            pool.stop()


def in_group(group, hands_on=True):
    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=hands_on
    )
    return Driver.options(scheduling_strategy=strategy).remote()


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_replicas_take_the_bundles_of_their_group(group, strategy):
    driver = in_group(group)  # the group has all CPUs: none is left outside
    spec = PoolSpec(make_policy=ADDING, scheduling_strategy=strategy, start_timeout_s=240.0)
    assert ray.get(driver.ask.remote(spec)) == [11, 12, 13]
    ray.kill(driver)


def test_a_group_without_room_for_a_replica_is_refused(group):
    driver = in_group(group)
    spec = PoolSpec(make_policy=ADDING, num_cpus_per_replica=2.0, start_timeout_s=240.0)
    with pytest.raises(RuntimeError, match=r"the placement group is too small .* {'CPU': 2.0}"):
        ray.get(driver.ask.remote(spec))
    ray.kill(driver)


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD"])
def test_a_group_that_is_not_handed_on_is_left_alone(make_group, strategy):
    driver = in_group(make_group({"CPU": 1}), hands_on=False)  # the other CPU is outside
    spec = PoolSpec(make_policy=ADDING, scheduling_strategy=strategy, start_timeout_s=240.0)
    assert ray.get(driver.ask.remote(spec)) == [11, 12, 13]
    ray.kill(driver)


@pytest.mark.parametrize("checked", [True, False])
def test_a_cluster_without_room_is_refused_or_waited_for(checked):
    """`placement.check=false` is for one that grows; this one does not."""
    flags = ["--policy.placement=pool", "--policy.num_gpus_per_replica=0.5"]
    config = load_config(TrainConfig, [*flags, f"--placement.check={checked}"])
    asked = algorithm_config(config).pool_spec()
    assert asked.check_room == checked
    spec = dataclasses.replace(asked, make_policy=ADDING, arguments={}, start_timeout_s=0.5)
    said = (
        r"the cluster is too small .*: 1 replicas need 0\.5 GPU each.*--placement\.check=false"
        if checked
        else "a base-policy replica did not start: not ready within start_timeout_s=0.5"
    )
    with pytest.raises(PoolError, match=said) as refusal:
        BasePolicyPool(spec)
    assert isinstance(refusal.value, UserError)  # a sentence, and no traceback


@pytest.mark.parametrize(("strategy", "given"), [("DEFAULT", None), ("SPREAD", "SPREAD")])
def test_without_a_group_replicas_are_placed_as_they_were_asked_to(strategy, given):
    assert of_replica(strategy) == given
    beside = beside_the_driver()
    assert (beside.node_id, beside.soft) == (ray.get_runtime_context().get_node_id(), True)
