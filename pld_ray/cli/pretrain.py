"""`pld-ray pretrain`."""

from __future__ import annotations

import argparse
import pathlib
import shlex

from pld_ray.cli.arguments import Parser
from pld_ray.cli.train import ANEW, resumed_config, tell_idle


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "pretrain",
        "Keys are those of train; algorithm.calql_steps must be > 0. The critic is loaded "
        "by pld-ray train --pretrained_critic=RUN_DIR/checkpoints/pretrained",
        takes_settings=True,
    )
    parser.value(
        "resume",
        "RUN_DIR",
        f"continue one that was stopped; may be given anew: {', '.join(ANEW)}",
    )
    parser.switch("trust", "with --resume: run the code that a foreign run names")
    return parser


def run(args: argparse.Namespace) -> int:
    """Initialise a critic, or print the configuration."""
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import dump_config, load_config

    if args.resume is not None:
        config = resumed_config(args.resume, args.settings, args.trust)
    elif args.trust:
        raise ConfigError("--trust goes with --resume=RUN_DIR")
    else:
        config = load_config(TrainConfig, args.settings)
    if args.print_config:
        print(dump_config(config), end="")
        return 0

    from pld_ray.config.start_check import check_start

    check_start(config)
    if args.resume is None:
        tell_idle(config, args.settings)
    from pld_ray.jobs.pretrain import pretrain
    from pld_ray.runs.layout import resuming

    summary = pretrain(config, pathlib.Path(args.resume) if args.resume else None)
    if "q_data" not in summary:
        again = resuming(args.resume or config.output_dir)
        print(
            f"saved {summary['checkpoint']} after {summary['calql_steps']} Cal-QL steps\n"
            f"continue with: pld-ray pretrain {again}"
        )
        return 0
    checkpoint = shlex.quote(str(summary["checkpoint"]))
    print(
        f"{summary['calql_steps']} Cal-QL steps on {summary['offline_transitions']} offline "
        f"transitions: Q on data {summary['q_data']:.3f}, on policy actions "
        f"{summary['q_policy']:.3f}, {summary['bound_rate']:.0%} of them below the data's return\n"
        f"use it with: pld-ray train --pretrained_critic={checkpoint}"
    )
    return 0
