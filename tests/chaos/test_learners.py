"""A node with a learner of a fine-tuning goes: the run goes on with those that are left."""

from __future__ import annotations

import json
import threading

import pytest
from chaos import wait_for
from policy_fixtures import save_act
from several_ranks import difference
from sharded_data import write_dataset

from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.jobs.finetune import finetune

pytestmark = pytest.mark.chaos

SMALL = [
    *("--algorithm.batch_size=8", "--total_steps=60", "--evaluation.interval_steps=0"),
    *("--algorithm.learning_rate=1e-5", "--checkpoint.interval_steps=5"),
    "--tracking.enabled=false",
]


def test_one_of_two_learners_goes_with_its_node_and_one_ends_the_run(cluster, add_node, tmp_path):
    save_act(tmp_path / "act")
    write_dataset(tmp_path / "data", (12, 3, 9, 20, 7))
    given = [f"--dataset=[{tmp_path / 'data'}]", f"--policy.path={tmp_path / 'act'}", *SMALL]
    one, two = tmp_path / "one", tmp_path / "two"
    alone = ["--algorithm.accumulation=2", f"--output_dir={one}"]
    finetune(load_config(FinetuneConfig, [*given, *alone]))

    add_node(learning=1)
    lost = add_node(learning=1)
    together = [
        *("--learners.num_learners=2", "--learners.min_learners=1"),
        *("--learners.whole_parameter_mb=0.001", "--placement.learner={learning: 1}"),
        *(f"--ray_address={cluster.address}", f"--output_dir={two}"),
    ]

    def lose_a_node() -> None:
        wait_for(lambda: list(two.glob("checkpoints/step_*")), "the first checkpoint")
        cluster.remove_node(lost, allow_graceful=False)

    killer = threading.Thread(target=lose_a_node, daemon=True)
    killer.start()
    summary = finetune(load_config(FinetuneConfig, [*given, *together]))
    killer.join(timeout=1)
    assert not killer.is_alive()
    assert summary["updates"] == 60
    restarts = (two / "metrics.restarts.jsonl").read_text().splitlines()
    assert len([row for row in map(json.loads, restarts) if "restart" in row]) <= 1
    assert difference(*(run / "checkpoints/final/components" for run in (one, two))) <= 1e-6
