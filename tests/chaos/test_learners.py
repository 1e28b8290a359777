"""A node with a learner of a fine-tuning goes: the run goes on with those that are left."""

from __future__ import annotations

import threading

import pytest
from chaos import wait_for
from policy_fixtures import save_act
from several_ranks import difference
from sharded_data import write_dataset

from pld_ray.config.file import load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.files.manifest import check_manifest
from pld_ray.jobs.finetune import finetune
from pld_ray.runs.run_dir import PARTIAL, RunError
from pld_ray.runs.status import FAILED, read_status

pytestmark = pytest.mark.chaos

SMALL = [
    *("--algorithm.batch_size=512", "--total_steps=60", "--evaluation.interval_steps=0"),
    *("--algorithm.learning_rate=1e-5", "--checkpoint.interval_steps=5"),
    "--tracking.enabled=false",
]


@pytest.fixture
def given(tmp_path):
    save_act(tmp_path / "act")
    write_dataset(tmp_path / "data", (12, 3, 9, 20, 7))
    return [f"--dataset=[{tmp_path / 'data'}]", f"--policy.path={tmp_path / 'act'}", *SMALL]


def test_one_of_two_learners_goes_with_its_node_and_one_ends_the_run(
    cluster, add_node, given, tmp_path
):
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
    log = (two / "train.log").read_text()
    assert log.index("2 of 2 learners train") < log.index("1 of 2 learners train")
    assert difference(*(run / "checkpoints/final/components" for run in (one, two))) <= 1e-6


def test_a_checkpoint_that_cannot_be_written_ends_all_learners_at_once(given, tmp_path):
    folder = tmp_path / "run"

    def stand_in_the_way_of_the_second() -> None:
        wait_for((folder / "config.yaml").is_file, "the run's beginning")
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / f"checkpoints/{PARTIAL}step_000000010").touch()

    threading.Thread(target=stand_in_the_way_of_the_second, daemon=True).start()
    learners = ["--learners.num_learners=2", f"--output_dir={folder}"]
    with pytest.raises(RunError, match=r"cannot write checkpoint .*10: .*; the last good .*05\."):
        finetune(load_config(FinetuneConfig, [*given, *learners]))
    assert not (folder / "metrics.restarts.jsonl").exists()
    status = read_status(folder)
    assert status.state == FAILED
    assert "cannot write checkpoint" in status.reason
    assert check_manifest(folder / "checkpoints/step_000000005")
