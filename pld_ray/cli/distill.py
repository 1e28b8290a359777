"""`pld-ray distill`."""

from __future__ import annotations

import argparse
import pathlib
import shlex
from typing import Any

from pld_ray.cli.arguments import Parser, configuration

CONFIG_CLASS = "DistillConfig"


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "distill",
        "Gives what residuals have learnt back to their base policy: records successes of each "
        "run's base + residual (with probing, from sampled placements), mixes successes of the "
        "base policy in, fine-tunes the base policy on them, and compares base, base + residual "
        "and distilled policy on the same held init states of all tasks of the suite. Arguments "
        "are folders of runs of pld-ray train. OUT/policy is the result; the same command goes on "
        "after a stop.",
        takes_settings=True,
        config_class=CONFIG_CLASS,
    )
    parser.switch("trust", "run the code that foreign runs name")
    parser.switch("dry_run", "check runs and policy, then stop")
    return parser


def run(args: argparse.Namespace) -> int:
    """Distil, or print or check a configuration."""
    from pld_ray.cli.finetune import datasets_and_flags
    from pld_ray.config.file import dump_config, load_config

    paths, flags = datasets_and_flags(args.settings)
    config = load_config(configuration(CONFIG_CLASS), flags)
    if args.print_config:
        print(dump_config(config), end="")
        return 0

    from pld_ray.jobs.distill import distill, open_teachers

    runs = [pathlib.Path(path) for path in paths]
    if args.dry_run:
        for teacher in open_teachers(config, runs, args.trust):
            print(f"{teacher.task}: {teacher.checkpoint}")
        return 0
    summary = distill(config, runs, lambda text: print(text, flush=True), args.trust)
    out = pathlib.Path(config.output_dir).resolve()
    print((out / "table.md").read_text().strip())
    policy = shlex.quote(summary["policy"])
    print(f"{rates(summary)}\nresults: {out}\nnext: pld-ray train --policy.path={policy}")
    return 0


def rates(summary: dict[str, Any]) -> str:
    """Means of the distilled tasks; of the others, where `evaluation.tasks` names these alone."""
    if summary["base_success"] is None:
        others = summary["mean_of_all_tasks"]
        return (
            f"tasks that were not distilled: base {others['base']:.0%}, "
            f"distilled {others['distilled']:.0%}"
        )
    return (
        f"distilled tasks: base {summary['base_success']:.0%}, base + residual "
        f"{summary['residual_success']:.0%}, distilled {summary['distilled_success']:.0%}"
    )
