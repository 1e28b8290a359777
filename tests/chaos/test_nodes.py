"""Nodes that disappear: a runner's, the learner's; an object store that is full."""

from __future__ import annotations

import numpy as np
import pytest
import ray
from chaos import POINT_RUN, check_counts, progress, wait_for

from pld_ray.config import TrainConfig
from pld_ray.config.file import load_config
from pld_ray.jobs.cluster import check_cluster
from pld_ray.rllib import ResidualSACConfig

pytestmark = pytest.mark.chaos


def run_config(folder, *extra) -> TrainConfig:
    arguments = [*POINT_RUN, f"--output_dir={folder}", "--tracking.enabled=false", *extra]
    return load_config(TrainConfig, arguments)


def train_until(algorithm, condition, what):
    def one_more():
        algorithm.train()
        return condition()

    wait_for(one_more, what)


def test_a_node_with_a_runner_goes_and_comes_back(cluster, add_node, connect, tmp_path):
    add_node(simulation=1)
    lost = add_node(simulation=1)
    connect()
    config = run_config(
        tmp_path / "run",
        "--runners.num_env_runners=2",
        "--placement.env_runner={simulation: 1}",
        "--runners.num_cpus_per_env_runner=1",
    )
    check_cluster(config)
    algorithm = ResidualSACConfig.of_run(config).build_algo()
    try:
        group = algorithm.env_runner_group
        nodes = group.foreach_env_runner(
            lambda runner: ray.get_runtime_context().get_node_id(), local_env_runner=False
        )
        assert len(set(nodes)) == 2
        train_until(algorithm, lambda: algorithm.updates > 0, "learning")
        cluster.remove_node(lost, allow_graceful=False)
        train_until(algorithm, lambda: group.num_healthy_remote_env_runners() == 1, "the loss")
        steps = algorithm.env_steps
        train_until(algorithm, lambda: algorithm.env_steps > steps + 500, "training on one runner")
        add_node(simulation=1)
        train_until(algorithm, lambda: group.num_healthy_remote_env_runners() == 2, "the return")
        algorithm.asynchronous.drain()
        check_counts(algorithm)
    finally:
        algorithm.stop()


def test_the_learners_node_goes_and_the_run_ends_as_if_nothing_had_happened(
    cluster, add_node, start_run, tmp_path
):
    add_node(simulation=2)
    lost = add_node(learning=1)
    folder = tmp_path / "run"
    run = start_run(
        *POINT_RUN,
        "--tracking.enabled=false",
        f"--output_dir={folder}",
        f"--ray_address={cluster.address}",
        "--runners.num_env_runners=1",
        "--runners.num_learners=1",
        "--placement.env_runner={simulation: 1}",
        "--placement.learner={learning: 1}",
        "--total_steps=15000",
    )
    wait_for(lambda: list((folder / "checkpoints").glob("step_*")), "the first checkpoint")
    cluster.remove_node(lost, allow_graceful=False)
    add_node(learning=1)
    assert run.wait(timeout=300) == 0
    assert "going on from the last checkpoint" in (folder / "train.log").read_text()
    counts = progress(folder, "final")
    assert counts["env_steps"] >= 15000
    assert counts["updates"] + counts["update_debt"] == pytest.approx(0.1 * counts["stored_steps"])


def test_a_full_object_store_does_not_stop_the_run(cluster, add_node, connect, tmp_path):
    add_node(simulation=1)
    connect()
    config = run_config(
        tmp_path / "run",
        "--runners.num_env_runners=1",
        "--placement.env_runner={simulation: 1}",
    )
    algorithm = ResidualSACConfig.of_run(config).build_algo()
    try:
        train_until(algorithm, lambda: algorithm.updates > 0, "learning")
        hoard = [ray.put(np.zeros(10 * 2**20, dtype=np.uint8)) for _ in range(20)]  # 2 stores full
        steps = algorithm.env_steps
        train_until(algorithm, lambda: algorithm.env_steps > steps + 1000, "training")
        algorithm.asynchronous.drain()
        check_counts(algorithm)
        assert all(not ray.get(reference).any() for reference in hoard)
    finally:
        algorithm.stop()
