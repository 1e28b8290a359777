"""How long `pld-ray` takes to answer, each time in a process of its own, median of several.

    python experiments/benchmarks/cli.py [--repeats 5] [--json]

- `help_s`: `pld-ray --help`; `explain_s`: `pld-ray train --explain algorithm.utd`; `ls_s`:
  `pld-ray ls` on a folder of `--runs` runs; `complete_s`: the answer to TAB behind
  `pld-ray train --algorithm.`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from pld_ray.config import TrainConfig
from pld_ray.config.file import dump_config

TYPED = "pld-ray train --algorithm."
COMPLETING = {"_ARGCOMPLETE": "1", "COMP_LINE": TYPED, "COMP_POINT": str(len(TYPED))}


def make_runs(folder: pathlib.Path, count: int) -> None:
    """Runs that have begun: a configuration and some metrics each."""
    for seed in range(count):
        run = folder / f"run{seed}"
        run.mkdir()
        (run / "config.yaml").write_text(dump_config(TrainConfig(seed=seed, output_dir=str(run))))
        rows = [{"env_steps": 100 * i, "eval/residual_success": 0.5} for i in range(100)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def seconds(arguments: list[str], repeats: int, environment: dict[str, str] | None = None) -> float:
    """Median wall time of the command, after one call that fills the file cache."""
    command = [sys.executable, "-m", "pld_ray.cli", *arguments]
    walls = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), "_ARGCOMPLETE_STDOUT_FILENAME": os.devnull},
        )
        walls.append(time.perf_counter() - began)
    return round(statistics.median(walls[1:]), 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_runs(pathlib.Path(folder), arguments.runs)
        measured = {
            "help_s": seconds(["--help"], arguments.repeats),
            "explain_s": seconds(["train", "--explain", "algorithm.utd"], arguments.repeats),
            "ls_s": seconds(["ls", folder], arguments.repeats),
            "complete_s": seconds([], arguments.repeats, COMPLETING),
        }
    if arguments.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:12}{value:6.2f} s")


if __name__ == "__main__":
    main()
