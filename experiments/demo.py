"""`make demo`: the main job on the embedded task with the shipped defaults; `make demo-pixels`: the
same from two cameras.

A finished run is shown again instead of being repeated; an interrupted one is continued.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from pld_ray.cli import main as pld_ray

STATES = [
    "--config_path=tabletop",
    "--total_steps=15000",  # of the preset's 24,000: some five minutes in all
    "--runners.num_env_runners=1",  # steps while updates are made; two collect more at first
    "--evaluation.num_env_runners=2",
    "--evaluation.interval_steps=3000",  # two that come before the last is over are left out
    "--evaluation.validation_states=40",
]
PIXELS = [
    "--config_path=tabletop_pixels",
    f"--policy.path={pathlib.Path(__file__).parent / 'base_policy/pld_tabletop_flow'}",
    "--runners.num_env_runners=0",  # as it was measured: one process, the same figures each time
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", default="outputs/demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pixels", action="store_true", help="two cameras in place of states")
    args = parser.parse_args()
    folder = pathlib.Path(args.output_dir)
    if not (folder / "summary.json").exists():
        job = PIXELS if args.pixels else STATES
        new = [*job, f"--output_dir={folder}", f"--seed={args.seed}"]
        resume = (folder / "config.yaml").exists()
        status = pld_ray(["train", f"--resume={folder}"] if resume else ["train", *new])
        if status or not (folder / "summary.json").exists():
            return status
    show(folder, "make demo-pixels" if args.pixels else "make demo")
    return 0


def show(folder: pathlib.Path, command: str) -> None:
    """Print what the run reached and where to look."""
    summary = json.loads((folder / "summary.json").read_text())
    print(
        f"\nbase policy            {summary['base_success']:.0%}"
        f"\nbase + residual        {summary['residual_success']:.0%}   on "
        f"{summary['n_episodes']} held init states, after {summary['env_steps']} environment steps"
        f"\n\nlearning curve         {folder / 'learning_curve.png'}"
        f"\nevaluation             {folder / 'eval_info.json'}"
        f"\ncheckpoint             {summary['checkpoint']}"
        f"\nMLflow                 .venv/bin/mlflow ui --backend-store-uri "
        f"{summary['mlflow_tracking_uri']}"
        f"\nrun again              rm -r {folder} && {command}"
    )


if __name__ == "__main__":
    sys.exit(main())
