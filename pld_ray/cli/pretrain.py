"""`pld-ray pretrain`."""

from __future__ import annotations

from pld_ray.cli.arguments import pop_flag

USAGE = """usage: pld-ray pretrain [--config_path=FILE.yaml] [--key=value ...]

Keys are those of train; algorithm.calql_steps must be > 0. The critic is loaded by
pld-ray train --pretrained_critic=RUN_DIR/checkpoints/pretrained
"""


def run(args: list[str]) -> int:
    """Initialise a critic, or print the configuration."""
    from pld_ray.config import TrainConfig
    from pld_ray.config.file import load_config, main_print

    print_config = pop_flag(args, "print_config")
    config = load_config(TrainConfig, args)
    if print_config:
        main_print(config)
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
