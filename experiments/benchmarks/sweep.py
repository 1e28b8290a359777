"""A sweep with ASHA while a trial is killed and a node removed; and what Tune and MLflow cost.

    python experiments/benchmarks/sweep.py --json

Prints `trials_ended` of `num_trials`, `points`, `points_doubled` and `points_lost` (MLflow against
the trials' own histories), and `driver_overhead`: the share by which a one-trial sweep with MLflow
takes longer than `pld-ray train` without it, from the first checkpoint to the last, as the median
of pairs that run side by side on a core each (`overheads`). It needs two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import ray
import yaml
from mlflow.tracking import MlflowClient
from plain import PLAIN
from ray.cluster_utils import Cluster

from pld_ray.runs.journal import TIME

BASE: dict[str, Any] = {
    "env.task": "lift_the_can",
    **{f"algorithm.{name}": value for name, value in PLAIN.items()},
    "algorithm.offline_episodes": 2,
    "algorithm.warmup_steps": 200,
    "algorithm.actor_delay_updates": 0,  # trials differ early, so that ASHA has something to stop
    "algorithm.hidden_dims": [64, 64],
    "algorithm.batch_size": 64,
    "runners.num_env_runners": 0,
    "evaluation.interval_steps": 500,
    "evaluation.validation_states": 3,
    "evaluation.held_states": 5,
    "checkpoint.interval_steps": 500,
}
PARTS = ("faults", "overhead")
HEARTBEAT = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print nothing but the figures")
    parser.add_argument("--total_steps", type=int, default=2500)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pairs", type=int, default=6, help="of runs, for driver_overhead")
    parser.add_argument("--folder", help="keep the sweep here; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.folder or scratch)
        figures = {}
        if "faults" in args.parts:
            figures |= measure_faults(folder / "faults", args.total_steps)
        if "overhead" in args.parts:
            figures |= measure_overhead(folder / "overhead", 2 * args.total_steps, args.pairs)
    print(json.dumps(figures, indent=None if args.json else 1))


def measure_faults(folder: pathlib.Path, total_steps: int) -> dict[str, Any]:
    """Twelve trials on a head and two nodes of one CPU each; a trial dies, then a node."""
    file = write_sweep(
        folder,
        {
            "set": {**BASE, "total_steps": total_steps},
            "space": {
                "algorithm.residual_scale": {"grid": [0.25, 0.5, 1.0]},
                "algorithm.utd": {"grid": [0.25, 0.5]},
            },
            "seeds": [0, 1],
            "scheduler": {"type": "asha", "grace_steps": 1000, "reduction_factor": 2},
        },
    )
    cluster = Cluster(
        initialize_head=True,
        connect=False,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": 100 * 2**20,
            "_system_config": HEARTBEAT,
        },
    )
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    started = time.monotonic()
    driver = start_sweep(file, folder / "run", cluster.address)
    try:
        victim = wait_for_checkpoint(folder / "run", driver)
        os.kill(json.loads((victim / "run.lock").read_text())["pid"], signal.SIGKILL)
        wait_for(lambda: len(list((folder / "run").glob("trials/*/summary.json"))) >= 2, driver)
        cluster.remove_node(nodes[0], allow_graceful=False)
        status = driver.wait()
    finally:
        driver.kill()
        cluster.shutdown()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    ended = summary["num_finished"] + summary["num_stopped_early"]
    return {
        "exit_status": status,
        "trials_ended": ended,
        "num_trials": summary["num_trials"],
        "stopped_early": summary["num_stopped_early"],
        "wall_s": round(time.monotonic() - started, 1),
        **count_points(folder / "run"),
    }


def measure_overhead(folder: pathlib.Path, total_steps: int, num_pairs: int) -> dict[str, Any]:
    """One trial under Tune with MLflow, and the same loop alone; training steps only.

    The two run at the same time, each with all its processes on a core of its own, and change
    cores from pair to pair: what slows the machine slows both, and whatever Tune, Ray and MLflow
    do is taken from the trial's core. A run before them fills the caches that all of them read.
    """
    folder.mkdir(parents=True)
    settings = {**BASE, "total_steps": total_steps, "evaluation.interval_steps": 1000}
    settings["offline_cache"] = str(folder / "cache")
    start_alone(settings, folder / "first", core=0).wait()
    swept, alone = [], []
    for pair in range(num_pairs):
        trial = folder / f"swept{pair}" / "trials" / "t0000"
        sweep = {"set": settings, "variants": {"only": {}}}
        file = write_sweep(folder / f"swept{pair}.sweep", sweep)
        driver = start_sweep(file, folder / f"swept{pair}", None, core=pair % 2)
        wait_for((trial / "config.yaml").is_file, driver)
        other = start_alone(settings, folder / f"alone{pair}", core=(pair + 1) % 2)
        if driver.wait() or other.wait():
            raise RuntimeError(f"a run failed: see {folder}")
        swept.append(training_span(trial))
        alone.append(training_span(folder / f"alone{pair}"))
    ratios = [with_both / without - 1 for with_both, without in zip(swept, alone, strict=True)]
    return {
        "swept_s": [round(seconds, 2) for seconds in swept],
        "alone_s": [round(seconds, 2) for seconds in alone],
        "overheads": [round(ratio, 3) for ratio in ratios],
        "driver_overhead": round(statistics.median(ratios), 3),
    }


def start_alone(
    settings: dict[str, Any], output_dir: pathlib.Path, core: int
) -> subprocess.Popen[bytes]:
    """`pld-ray train` without MLflow."""
    command = [sys.executable, "-m", "pld_ray.cli", "train", "--tracking.enabled=false"]
    command += [f"--{key}={value}" for key, value in settings.items()]
    command.append(f"--output_dir={output_dir}")
    return start(command, output_dir.with_suffix(".log"), core)


def training_span(run: pathlib.Path) -> float:
    """Seconds from the first to the last checkpoint line of the log, evaluations included."""
    times = [line[:23] for line in (run / "train.log").open() if "checkpoint" in line]
    first, last = (
        time.mktime(time.strptime(t[:19], "%Y-%m-%d %H:%M:%S")) + float(t[19:])
        for t in (times[0], times[-1])
    )
    return last - first


def count_points(folder: pathlib.Path) -> dict[str, int]:
    """Metric points in MLflow, those logged twice, and rows of the histories that are missing."""
    record = json.loads((folder / "mlflow_run.json").read_text())
    client = MlflowClient(record["tracking_uri"])
    experiment = client.get_run(record["run_id"]).info.experiment_id
    query = f"tags.`mlflow.parentRunId` = '{record['run_id']}'"
    figures = Counter({"points": 0, "points_doubled": 0, "points_lost": 0})
    for run in client.search_runs([experiment], query):
        logged: Counter[tuple[str, int]] = Counter()
        for key in run.data.metrics:
            logged.update((key, p.step) for p in client.get_metric_history(run.info.run_id, key))
        history = folder / "trials" / run.data.tags["trial"] / "metrics.jsonl"
        rows = [json.loads(line) for line in history.read_text().splitlines()]
        expected = {
            (key, row["env_steps"])
            for row in rows
            for key, value in row.items()
            if key not in ("env_steps", TIME) and value is not None
        }
        figures["points"] += len(logged)
        figures["points_doubled"] += sum(count - 1 for count in logged.values())
        figures["points_lost"] += len(expected - set(logged))
    return dict(figures)


def write_sweep(folder: pathlib.Path, content: dict[str, Any]) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "benchmark.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def start_sweep(
    file: pathlib.Path, output_dir: pathlib.Path, address: str | None, core: int | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pld_ray.cli", "sweep", str(file)]
    command += [f"--output_dir={output_dir}", *([f"--ray_address={address}"] if address else [])]
    return start(command, file.parent / "log", core)


def start(
    command: list[str], output: pathlib.Path, core: int | None = None
) -> subprocess.Popen[bytes]:
    """A process, and all that it starts, on this core alone; None is any."""
    allowed = os.sched_getaffinity(0)
    try:
        if core is not None:
            os.sched_setaffinity(0, {sorted(allowed)[core]})  # children inherit it
        return subprocess.Popen(command, stdout=output.open("wb"), stderr=subprocess.STDOUT)
    finally:
        os.sched_setaffinity(0, allowed)


def wait_for_checkpoint(folder: pathlib.Path, driver: subprocess.Popen[bytes]) -> pathlib.Path:
    """The first trial's folder with a checkpoint."""
    wait_for(lambda: any(folder.glob("trials/*/checkpoints/step_*")), driver)
    return next(folder.glob("trials/*/checkpoints/step_*")).parent.parent


def wait_for(condition: Any, driver: subprocess.Popen[bytes]) -> None:
    while not condition():
        if driver.poll() is not None:
            raise RuntimeError(f"the sweep ended early with status {driver.returncode}")
        time.sleep(0.2)


if __name__ == "__main__":
    try:
        main()
    finally:
        ray.shutdown()
