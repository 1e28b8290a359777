"""`pld-ray eval`."""

from __future__ import annotations

import argparse
import re
import sys

from pld_ray.cli.arguments import Parser, on_this_machine, whole_number


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("eval")
    parser.value("checkpoint", "DIR", "a folder below RUN_DIR/checkpoints", required=True)
    parser.value(
        "n_episodes",
        "N",
        "of the run's held init states; all of them by default, and never those that chose the "
        "checkpoint",
        read=whole_number,
    )
    parser.value(
        "output_dir",
        "DIR",
        "where eval_info.json goes; RUN_DIR/eval/CHECKPOINT by default",
        read=on_this_machine,
    )
    parser.value(
        "videos",
        "0,7,12",
        "films of these init states, base and residual side by side",
        default=[],
        read=init_states,
    )
    parser.value(
        "ray_address",
        "HOST:PORT",
        "the Ray cluster to join; RAY_ADDRESS, or the run's own, by default",
    )
    parser.switch("trust", "run the code that a foreign run names")
    parser.switch("parity", "check that beta = 0 repeats the base policy's episodes")
    return parser


def init_states(text: str) -> list[int]:
    """`0,7,12`."""
    if not re.fullmatch(r"[ 0-9,]*", text) or max(map(len, text.split(","))) > 9:
        raise ValueError("init states, such as 0,7,12")
    return [int(part) for part in text.split(",") if part.strip()]


def run(args: argparse.Namespace) -> int:
    """Evaluate; exit status 1 when parity or films were asked for and are not there."""
    from pld_ray.jobs.evaluate import evaluate_checkpoint

    info = evaluate_checkpoint(
        args.checkpoint,
        args.n_episodes,
        args.output_dir,
        args.videos,
        args.parity,
        args.trust,
        args.ray_address,
    )
    base, residual = info["base_success"], f"{info['residual_success']:.0%}"
    played = (
        f"learnt policy {residual}"
        if base is None
        else f"base {base:.0%}, base + residual {residual}"
    )
    print(f"{played} on {info['n_episodes']} held init states")
    rate = info["steps_per_second"]
    for who, steps in info["success_steps"].items():
        if steps is not None:
            seconds = f", {steps / rate:.1f} s" if rate else ""
            print(f"{who}: a success takes {steps:.0f} steps{seconds} on average")
    if args.parity:
        print(f"beta 0 repeats the base policy's episodes: {'yes' if info['parity'] else 'NO'}")
    for path in (*info["videos"], info["path"]):
        print(f"written: {path}")
    if info["video_failure"] is not None:
        print(f"pld-ray: the figures are written, but {info['video_failure']}", file=sys.stderr)
    return 0 if info["parity"] in (None, True) and info["video_failure"] is None else 1
