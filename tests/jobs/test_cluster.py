"""Whether a run fits on the nodes that are there, said before anything waits for ever."""

from __future__ import annotations

import os

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.cluster_utils import Cluster

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs.cluster import (
    check_cluster,
    closed_stderr,
    cluster_refusal,
    demands,
    join_cluster,
)
from pld_ray.jobs.placing import fit_at_once, unplaced


def test_what_a_run_reserves():
    config = load_config(
        TrainConfig,
        [
            "--runners.num_env_runners=2",
            "--runners.num_learners=1",
            "--runners.num_gpus_per_learner=0.5",
            "--evaluation.num_env_runners=1",
            "--policy.placement=pool",
            "--policy.replicas=1",
            "--policy.max_replicas=2",
            "--placement.evaluation={simulation: 1}",
        ],
    )
    assert demands(config) == [
        ("env runner", {"CPU": 0.5}),
        ("env runner", {"CPU": 0.5}),
        ("evaluation runner", {"CPU": 0.5, "simulation": 1}),
        ("learner", {"CPU": 1.0, "GPU": 0.5}),
        ("base-policy replica", {"CPU": 1.0}),
        ("base-policy replica", {"CPU": 1.0}),
    ]


def test_the_room_on_one_node_is_not_the_sum_over_nodes():
    two_cpus = ("learner", {"CPU": 2.0})
    assert unplaced([two_cpus], [{"CPU": 1.0}, {"CPU": 1.0}]) == [two_cpus]
    assert unplaced([two_cpus], [{"CPU": 1.0}, {"CPU": 2.0}]) == []


def test_the_large_are_placed_before_the_small():
    small, large = ("runner", {"CPU": 1.0}), ("learner", {"CPU": 3.0})
    assert unplaced([small, large, small], [{"CPU": 3.0}, {"CPU": 2.0}]) == []


RUNNER, LEARNER = ("runner", {"CPU": 2.0}), ("learner", {"CPU": 1.0, "GPU": 1.0})
PERSON = ("person", {"CPU": 1.0, "arm": 1.0})
EVALUATION, SIMULATOR = ("eval", {"CPU": 3.0}), {"CPU": 4.0, "GPU": 1.0, "sim": 2.0}
MARKS = {"accelerator_type:H200": 1.0, "memory": 9e9, "node:10.0.0.1": 1.0}


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        ([RUNNER] * 4 + [LEARNER], [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 8.0}]),
        ([RUNNER, LEARNER], [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 4.0}]),
        # else the runner of three takes the room without a GPU, and the others that with one
        (
            [("runner", {"CPU": 3.0}), RUNNER, RUNNER, ("learner", {"CPU": 2.0, "GPU": 1.0})],
            [{"CPU": 5.0, "GPU": 1.0}, {"CPU": 4.0}],
        ),
        # here CPUs go first, and to the node where they just fit
        (
            [EVALUATION, EVALUATION, ("replica", {"CPU": 2.0, "GPU": 0.5})],
            [{**SIMULATOR, "CPU": 2.0}, SIMULATOR, {"CPU": 4.0, "GPU": 1.0}],
        ),
        # what Ray says of a node besides its resources is no reason to spare it
        ([LEARNER, PERSON], [{**LEARNER[1], "arm": 1.0}, {**LEARNER[1], **MARKS}]),
    ],
)
def test_what_few_nodes_have_is_left_to_those_who_need_it(asked, nodes):
    assert unplaced(asked, nodes) == []


def test_a_trial_fits_where_one_of_its_processes_needs_the_gpu():
    trial = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]
    assert fit_at_once(trial, [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 4.0}]) == 1
    assert fit_at_once(trial, [{"CPU": 4.0}, {"CPU": 2.0, "GPU": 2.0}]) == 2
    assert fit_at_once([{"CPU": 1.0}, {}], [{"CPU": 2.0}]) == 2


def test_a_token_is_a_guess_after_the_reason_that_ray_gives(monkeypatch):
    """A head that is slow, and a token of another cluster's that was left in the home."""
    slow = TimeoutError("the head did not answer in time")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of another cluster")
    said = cluster_refusal("10.0.0.1:6379", slow)
    assert said.startswith("no Ray cluster answers at 10.0.0.1:6379 (the head did not answer")
    assert said.index("it may be busy, or perhaps asks for a token") > said.index("in time")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    assert "token" not in cluster_refusal("10.0.0.1:6379", slow)


sizes = st.lists(st.integers(1, 4), max_size=6)


@settings(max_examples=100)
@given(asked=sizes, nodes=sizes)
def test_never_more_is_placed_than_there_is(asked, nodes):
    left = unplaced([("x", {"CPU": float(n)}) for n in asked], [{"CPU": float(n)} for n in nodes])
    homeless = [resources["CPU"] for _, resources in left]
    assert sum(asked) - sum(homeless) <= sum(nodes)
    assert all(n in asked for n in homeless)


def test_a_run_that_does_not_fit_is_refused_with_what_is_short():
    cluster = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=2, resources={"simulation": 1})
    join_cluster(cluster.address, log_to_driver=False, logging_level="error")
    try:
        cluster.wait_for_nodes()
        config = load_config(
            TrainConfig,
            [
                "--runners.num_env_runners=3",
                "--placement.env_runner={simulation: 1}",
                "--runners.num_learners=1",
                "--runners.num_gpus_per_learner=1",
            ],
        )
        with pytest.raises(
            ConfigError, match=r"2 x env runner \(0.5 CPU, 1 simulation\)"
        ) as raised:
            check_cluster(config)
        assert "1 x learner (1 CPU, 1 GPU)" in str(raised.value)
        config.placement.check = False
        check_cluster(config)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_what_rays_core_says_at_its_start_is_not_shown_and_later_words_are(capfd):
    with closed_stderr():
        os.write(2, b"announcement\n")
    os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
