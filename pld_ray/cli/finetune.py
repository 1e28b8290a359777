"""`pld-ray finetune`."""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
from typing import TYPE_CHECKING

from pld_ray.cli.arguments import Parser, configuration
from pld_ray.cli.train import resumed_config

if TYPE_CHECKING:
    from pld_ray.config.finetune import FinetuneConfig

CONFIG_CLASS = "FinetuneConfig"


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "finetune",
        "Supervised fine-tuning of a LeRobot policy folder on LeRobotDatasets, through the "
        "policy's own loss and processors. Any dotted key of the configuration is a flag, such as "
        "--policy.path=DIR; RUN/checkpoints/best/policy is the result, a LeRobot policy folder.",
        takes_settings=True,
        config_class=CONFIG_CLASS,
    )
    parser.value(
        "resume",
        "RUN_DIR",
        "continue a run from its newest checkpoint that is whole; may be given anew: "
        "ray_address, placement.check, tracking.uri, tracking.enabled",
    )
    parser.switch("trust", "with --resume: run the code that a foreign run names")
    parser.switch("dry_run", "check policy, datasets and environment, then stop")
    return parser


def run(args: argparse.Namespace) -> int:
    """Fine-tune, or print or check a configuration."""
    from pld_ray.cli.ls import plain_console
    from pld_ray.config.file import dump_config
    from pld_ray.data.conversion_progress import TerminalSteps
    from pld_ray.runs.layout import resuming
    from pld_ray.runs.run_dir import RunDir

    config = configured(args)
    if args.print_config:
        print(dump_config(config), end="")
        return 0
    if args.resume is None:
        RunDir(config.output_dir).check_new()

    from pld_ray.jobs.finetune import check_finetune, finetune
    from pld_ray.jobs.finetune_learner import updates_done

    if args.dry_run:
        checkpoint, episodes = check_finetune(config)
        frames = sum(len(episode.rows) for episode in episodes)
        print(
            f"{checkpoint.directory} ({checkpoint.policy_type}) can learn from {len(episodes)} "
            f"episodes, {frames} frames"
        )
        return 0
    resume = pathlib.Path(args.resume) if args.resume else None
    batch = config.algorithm.batch_size
    samples = config.total_steps * batch
    before = batch * updates_done(RunDir(resume)) if resume else 0
    with TerminalSteps(plain_console()).phase("fine-tuning", samples, "samples", before) as advance:
        summary = finetune(config, resume, advance)
    folder = RunDir(resume or config.output_dir).path
    if "policy" not in summary:
        again = f"pld-ray finetune {resuming(folder)}"
        print(f"saved {summary['checkpoint']}\ncontinue with: {again}")
        return 0
    if summary["validation_loss"] is not None:
        print(f"validation loss {summary['start_loss']:.4f} -> {summary['validation_loss']:.4f}")
    if summary["validation_success"] is not None:
        start, success = summary["start_success"], summary["validation_success"]
        print(f"success on the validation states {start:.0%} -> {success:.0%}")
    print(
        f"{summary['updates']} updates, {summary['samples_per_s']:.0f} samples/s\n"
        f"next: pld-ray train --policy.path={shlex.quote(summary['policy'])}"
    )
    return 0


def configured(args: argparse.Namespace) -> FinetuneConfig:
    """The configuration; datasets are the arguments that are no flags, and those of `--dataset`.

    Raises:
        ConfigError: a flag or a file is wrong, or `--resume` is given with other settings than
            `resumed_config` takes.
    """
    from pld_ray.config import ConfigError
    from pld_ray.config.file import load_config
    from pld_ray.config.finetune import FinetuneConfig

    if args.resume is None:
        if args.trust:
            raise ConfigError("--trust goes with --resume=RUN_DIR")
        paths, flags = datasets_and_flags(args.settings)
        given = [f"--dataset={json.dumps(paths, ensure_ascii=False)}"] if paths else []
        return load_config(configuration(CONFIG_CLASS), [*given, *flags])
    config: FinetuneConfig = resumed_config(args.resume, args.settings, args.trust, FinetuneConfig)
    return config


def datasets_and_flags(args: list[str]) -> tuple[list[str], list[str]]:
    """Arguments of `Parser.read` that are no flags, and the others."""
    flags = [arg for arg in args if arg.startswith("--")]
    return [arg for arg in args if not arg.startswith("--")], flags
