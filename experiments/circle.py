"""The circle on the embedded suite: a residual for each task, distilled into the one base policy.

    python -m experiments.circle --output_dir=outputs/circle [--policy=DIR]

trains the residuals (`pld-ray train`, inline, `--parallel` at a time), then calls `pld-ray
distill`; what is there already is not made again, so the same command goes on after a stop.
`--policy` is what an earlier turn has left (`distilled/policy`), for a turn that starts from there.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import envs
from pld_ray.files.atomic import write_json_atomically

SUITE = "pld_tabletop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path("outputs/circle"))
    parser.add_argument("--policy", help="folder of the base policy; the embedded one without it")
    parser.add_argument("--tasks", nargs="+", default=envs.suite_tasks(SUITE))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24_000, help="environment steps of each task")
    parser.add_argument("--parallel", type=int, default=2, help="residuals trained at a time")
    parser.add_argument("--held_states", type=int, default=50)
    parser.add_argument("--validation_states", type=int, default=20)
    arguments, others = parser.parse_known_args()
    started = time.monotonic()
    try:
        runs = residuals(arguments)
    except KeyboardInterrupt:
        sys.exit("stopped: the same command goes on with what is there")
    out = arguments.output_dir / "distilled"
    command = ["distill", *map(str, runs), f"--output_dir={out}", f"--seed={arguments.seed}"]
    held = f"--evaluation.held_states={arguments.held_states}"
    call([*command, *base(arguments), held, "--tracking.enabled=false", *others])
    summary = json.loads((out / "summary.json").read_text())
    wall_s = round(time.monotonic() - started)
    summary |= {"wall_s": wall_s, "seeds": [arguments.seed], "command": " ".join(sys.argv)}
    write_json_atomically(arguments.output_dir / "summary.json", summary)
    print(f"{wall_s} s; results: {out}")


def residuals(arguments: argparse.Namespace) -> list[pathlib.Path]:
    """Train the residuals, `--parallel` at a time; once one of them fails no other is begun."""
    with ThreadPoolExecutor(arguments.parallel) as pool:
        futures = [pool.submit(residual, task, arguments) for task in arguments.tasks]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        failed = [future for future in futures if not future.cancelled() and future.exception()]
        return [future.result() for future in failed or futures]


def residual(task: str, arguments: argparse.Namespace) -> pathlib.Path:
    """Train the residual of a task, or go on with it; its run's folder."""
    folder = arguments.output_dir / "residual" / task
    if (folder / "summary.json").is_file():
        return folder
    if (folder / "config.yaml").is_file():
        call(["train", f"--resume={folder}"])
        return folder
    call(
        [
            *("train", "--config_path=tabletop", f"--env.suite={SUITE}", f"--env.task={task}"),
            *(f"--output_dir={folder}", f"--seed={arguments.seed}", *base(arguments)),
            *(f"--total_steps={arguments.steps}", "--evaluation.interval_steps=2000"),
            f"--evaluation.validation_states={arguments.validation_states}",
            f"--evaluation.held_states={arguments.held_states}",
            *("--runners.num_env_runners=0", "--tracking.enabled=false"),
        ]
    )
    return folder


def base(arguments: argparse.Namespace) -> list[str]:
    """The base policy of residuals and distillation."""
    return [f"--policy.path={arguments.policy}"] if arguments.policy else []


def call(command: list[str]) -> None:
    """`pld-ray` in a process of its own; it has said why, where it fails."""
    status = subprocess.run([sys.executable, "-m", "pld_ray.cli", *command]).returncode
    if status:
        sys.exit(f"pld-ray {command[0]} failed: the same command goes on with what is there")


if __name__ == "__main__":
    main()
