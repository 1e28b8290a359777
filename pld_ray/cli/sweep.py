"""`pld-ray sweep`."""

from __future__ import annotations

import argparse
import pathlib
import shlex
from typing import Any

from pld_ray.cli.arguments import Parser

OF_TRIALS = ("placement.check", "placement.wait_s")
ANEW = ("ray_address", "tracking.uri", "tracking.enabled", *OF_TRIALS)
"""What a sweep that goes on may be given anew: where it runs and logs."""


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "sweep",
        "Any key of the sweep file is a flag too, such as --scheduler.type=asha "
        "--seeds=[0,1,2] --stop.wall_time_s=3600 --max_concurrent=4. Examples are in "
        "experiments/sweeps/. --explain explains keys of trials too, those of pld-ray train.",
        takes_settings=True,
        config_class="SweepConfig",
        other_class="TrainConfig",
    )
    parser.positional("file", "sweep file, FILE.yaml", "?")
    parser.value("resume", "DIR", f"go on with a sweep; may be given anew: {', '.join(ANEW)}")
    parser.switch("trust", "with --resume: run the code that a foreign sweep names")
    parser.switch("dry_run", "print the trials and the resources they need, then stop")
    parser.switch("json", "with --dry_run: as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run, resume or show a sweep; exit status 1 when trials failed for good."""
    from pld_ray.config import ConfigError
    from pld_ray.config.file import dump_config, parse_flags
    from pld_ray.config.keys import field_names
    from pld_ray.sweep.config import SweepConfig, load_sweep

    if args.json and not args.dry_run:
        raise ConfigError("--json goes with --dry_run, which prints the trials: give both")
    if args.trust and args.resume is None:
        raise ConfigError("--trust goes with --resume=DIR")
    if args.resume is not None:
        flags = parse_flags(args.settings, [*field_names(SweepConfig), *OF_TRIALS])
        if flags.keys() - {*ANEW} or args.file or args.dry_run or args.print_config:
            raise ConfigError(
                "--resume takes the sweep's own settings; give no other flags than "
                f"--{', --'.join(ANEW)}"
            )

        from pld_ray.sweep.run import resume_sweep

        folder = pathlib.Path(args.resume)
        return conclude(resume_sweep(folder, flags, args.trust), folder)
    sweep = load_sweep([*([args.file] if args.file else []), *args.settings])
    if args.print_config:
        print(dump_config(sweep.config), end="")
        return 0
    if args.dry_run:
        from pld_ray.sweep.preview import preview

        print(preview(sweep, args.json))
        return 0

    from pld_ray.sweep.run import run_sweep

    return conclude(run_sweep(sweep), sweep.config.folder())


def conclude(summary: dict[str, Any], folder: pathlib.Path) -> int:
    """Say what came out, and what to do next."""
    from pld_ray.runs.layout import resuming

    best = summary["best"]
    print(
        f"{summary['name']}: {summary['num_finished']} of {summary['num_trials']} trials finished, "
        f"{summary['num_stopped_early']} stopped early, {summary['num_failed']} failed, "
        f"{summary['num_open']} open, {summary['wall_s']:.0f} s"
    )
    if best is not None and best["best_success"] is not None:
        rate = f"{best['best_success']:.0%} on validation"
        highest = f"{best['trial']} ({best['point']}), {rate}"
        print(f"highest: {highest}" if best["best_success"] else f"no trial succeeded: {rate}")
        print(f"next: pld-ray report {shlex.quote(str(folder))}")
        checkpoint = shlex.quote(f"{best['folder']}/checkpoints/best")
        print(f"      pld-ray eval --checkpoint={checkpoint}")
    if summary["num_open"] or summary["num_failed"]:
        print(f"      pld-ray sweep {resuming(folder)}")
    return 1 if summary["num_failed"] else 0
