"""Make a base policy that errs: demonstrate, train, save, evaluate.

    python experiments/base_policy/make_act.py --dataset DIR [--output DIR]

writes a LeRobotDataset of deliberately imperfect demonstrations to --dataset, trains one ACT for
all five `pld_tabletop` tasks on one CPU thread, saves it (by default over the embedded weights) and
reports its success on the held init states, alone and with an oracle's residual. --suite and
--tasks make one for tasks of LIBERO instead (its assets: see `envs.assets`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from demonstrations import Disturbance, load_columns, record
from evaluation import evaluate, oracle_residual
from safetensors.torch import load_file, save_file
from train import Training, train

import envs
from envs.experts import Perception
from envs.suites import default_task
from pld_ray.policies import EMBEDDED_ACT, load_base_policy

PROVENANCE = "PROVENANCE.json"
EMBEDDED_SUITE = "pld_tabletop"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dataset", type=Path, required=True, help="LeRobotDataset, new or made before"
    )
    parser.add_argument("--output", type=Path, help="pretrained directory")
    parser.add_argument("--suite", default=EMBEDDED_SUITE)
    parser.add_argument("--tasks", nargs="+", help="names; by default all tasks of the suite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes-per-task", type=int, default=60)
    parser.add_argument("--updates", type=int, default=Training.updates)
    parser.add_argument(
        "--scale-error", type=float, default=0.43, help="see envs.experts.Perception"
    )
    parser.add_argument(
        "--offset", type=float, nargs=2, default=[0.0, 0.0], help="see Perception, metres"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=float("inf"),
        help="demonstrate no placement further from the middle of the region, metres",
    )
    parser.add_argument("--disturbance", type=float, default=Disturbance.std)
    parser.add_argument("--float16", action="store_true", help="weights in half the space")
    parser.add_argument("--eval-only", action="store_true", help="evaluate what --output holds")
    parser.add_argument("--eval-states", type=int, default=100, help="of the suite's default task")
    parser.add_argument("--eval-states-other", type=int, default=20, help="of each other task")
    arguments = parser.parse_args()
    if arguments.within <= 0:
        parser.error("--within must be positive, metres")
    arguments.tasks = arguments.tasks or envs.suite_tasks(arguments.suite)
    if arguments.output is None:
        if arguments.suite != EMBEDDED_SUITE:
            parser.error("--output is needed: the default holds the policy of pld_tabletop")
        arguments.output = EMBEDDED_ACT
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    if not arguments.eval_only:
        provenance = make(arguments)
        provenance["fingerprint"] = load_base_policy(arguments.output).fingerprint
        write_provenance(arguments.output, provenance)
    evaluate_all(arguments)


def make(arguments: argparse.Namespace) -> dict[str, Any]:
    """Demonstrate (unless the dataset is there) and train."""
    started = time.monotonic()
    report = arguments.dataset / "demonstrations.json"
    if not report.exists():
        demonstrations = record(
            arguments.dataset,
            arguments.suite,
            arguments.tasks,
            arguments.episodes_per_task,
            Perception(scale_error=arguments.scale_error, offset=tuple(arguments.offset)),
            Disturbance(std=arguments.disturbance),
            arguments.seed,
            arguments.within,
        )
        report.write_text(json.dumps(demonstrations))
    recorded, tasks = time.monotonic(), " ".join(arguments.tasks)
    training = Training(updates=arguments.updates)
    loss = train(load_columns(arguments.dataset), training, arguments.seed, arguments.output)
    if arguments.float16:
        halve(arguments.output / "model.safetensors")
    return {
        "command": "python experiments/base_policy/make_act.py --dataset DIR "
        f"--seed {arguments.seed} --episodes-per-task {arguments.episodes_per_task} "
        f"--updates {arguments.updates} --scale-error {arguments.scale_error} "
        f"--disturbance {arguments.disturbance}"
        + (f" --within {arguments.within}" if arguments.within < float("inf") else "")
        + (" --float16" if arguments.float16 else "")
        + ("" if arguments.tasks == envs.suite_tasks(arguments.suite) else f" --tasks {tasks}")
        + (
            f" --suite {arguments.suite} --offset {arguments.offset[0]} {arguments.offset[1]}"
            if arguments.suite != EMBEDDED_SUITE
            else ""
        )
        + ("" if arguments.output == EMBEDDED_ACT else " --output DIR"),
        "seed": arguments.seed,
        "versions": {
            "python": platform.python_version(),
            **{
                p: importlib.metadata.version(p)
                for p in ("lerobot", "torch", "mujoco", "robosuite")
            },
        },
        "demonstrations": json.loads(report.read_text()),
        "seconds": {
            "demonstrations": round(recorded - started),
            "training": round(time.monotonic() - recorded),
        },
        "final_l1_loss": round(loss, 4),
    }


def halve(weights: Path) -> None:
    """Store weights in float16; a policy that loads them computes in its own precision."""
    state = {name: tensor.half() for name, tensor in load_file(weights).items()}
    save_file(state, weights, metadata={"format": "pt"})


def evaluate_all(arguments: argparse.Namespace) -> None:
    """Success per task on held init states, alone and with the oracle, into PROVENANCE.json."""
    policy = load_base_policy(arguments.output)
    provenance = json.loads((arguments.output / PROVENANCE).read_text())
    if policy.fingerprint != provenance["fingerprint"]:
        raise ValueError(f"{arguments.output / PROVENANCE} describes other weights than its own")
    results: dict[str, Any] = {}
    default = default_task(arguments.suite)
    for task in sorted(arguments.tasks, key=lambda name: name != default):
        wanted = arguments.eval_states if task == default else arguments.eval_states_other
        states = range(min(wanted, envs.LiberoEnv(arguments.suite, task).num_init_states))
        results[task] = {
            "base": evaluate(policy, arguments.suite, task, states).summary(),
            "base_and_oracle_residual": evaluate(
                policy, arguments.suite, task, states, oracle_residual
            ).summary(),
        }
        print(task, results[task], flush=True)
        write_provenance(arguments.output, {**provenance, "evaluation": results})


def write_provenance(directory: Path, provenance: dict[str, Any]) -> None:
    (directory / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
