"""Clusters of several local nodes, and runs small enough to be broken in a minute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ray
from ray.cluster_utils import Cluster

HEARTBEAT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
NODE = {"object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster():
    """A head that runs nothing but the driver, and functions to add and kill nodes."""
    made = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={
            "num_cpus": 1,
            "include_dashboard": False,
            "_system_config": HEARTBEAT,
            **NODE,
        },
    )
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def add_node(cluster):
    def add(**resources):
        for attempt in range(3):  # Ray gives a node of a busy machine 30 s to start
            try:
                return cluster.add_node(num_cpus=2, resources=resources, **NODE)
            except Exception as error:
                if attempt == 2 or "timed out during startup" not in str(error):
                    raise

    return add


@pytest.fixture
def connect(cluster):
    def join():
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        cluster.wait_for_nodes()

    return join


@pytest.fixture
def start_run(tmp_path):
    """Starts `pld-ray train` in a process of its own."""
    processes = []

    def start(*args):
        log = (tmp_path / f"run_{len(processes)}.log").open("w")
        command = [sys.executable, "-m", "pld_ray.cli", "train", *args]
        processes.append(
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
        )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
