"""`pld-ray pretrain`."""

from __future__ import annotations

import argparse

from pld_ray.cli.arguments import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "pretrain",
        "Keys are those of train; algorithm.calql_steps must be > 0. The critic is loaded "
        "by pld-ray train --pretrained_critic=RUN_DIR/checkpoints/pretrained",
        takes_settings=True,
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Initialise a critic, or print the configuration."""
    from pld_ray.config import TrainConfig
    from pld_ray.config.file import dump_config, load_config

    config = load_config(TrainConfig, args.settings)
    if args.print_config:
        print(dump_config(config), end="")
        return 0

    from pld_ray.config.start_check import check_start

    check_start(config)
    from pld_ray.jobs.pretrain import pretrain

    summary = pretrain(config)
    print(
        f"{summary['calql_steps']} Cal-QL steps on {summary['offline_transitions']} offline "
        f"transitions: Q on data {summary['q_data']:.3f}, on policy actions "
        f"{summary['q_policy']:.3f}, {summary['bound_rate']:.0%} of them below the data's return\n"
        f"use it with: pld-ray train --pretrained_critic={summary['checkpoint']}"
    )
    return 0
