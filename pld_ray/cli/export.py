"""`pld-ray export`."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex

from pld_ray.cli.arguments import Parser, on_this_machine
from pld_ray.cli.register import best_run


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "export",
        "Writes what a run has learnt as a LeRobot policy folder, for lerobot-eval, "
        "lerobot-rollout and, but for base + residual, --policy.path of pld-ray.",
    )
    parser.positional("run", "folder of a run, of a distillation, or of a sweep (its best trial)")
    parser.value(
        "to", "DIR", "folder of the policy, new or empty", read=on_this_machine, required=True
    )
    parser.value("checkpoint", "NAME", "one of RUN/checkpoints; best, or the newest, without it")
    parser.value(
        "push_to",
        "USER/NAME",
        "upload it to the Hugging Face hub besides; needs `hf auth login` or HF_TOKEN",
    )
    parser.switch("trust", "open the environment that a foreign run names")
    return parser


def run(args: argparse.Namespace) -> int:
    """Export."""
    if args.push_to:  # before the hub's client is imported
        os.environ["HF_HUB_OFFLINE"] = "0"
    from pld_ray.jobs.export import environment_flags, export

    folder, source = pathlib.Path(args.to), best_run(pathlib.Path(args.run))
    checkpoint = export(source, folder, args.checkpoint, args.trust, args.push_to)
    print(f"{folder}: the policy of {checkpoint}")
    if args.push_to:
        print(f"uploaded: https://huggingface.co/{args.push_to}")
    if flags := environment_flags(source):
        print(f"next: lerobot-eval {shlex.join([f'--policy.path={folder}', *flags])}")
    return 0
