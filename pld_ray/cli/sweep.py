"""`pld-ray sweep`."""

from __future__ import annotations

import pathlib
from typing import Any

from pld_ray.cli.arguments import pop_flag, pop_value

USAGE = """usage: pld-ray sweep FILE.yaml [--key=value ...]
       pld-ray sweep --resume=DIR [--ray_address=ADDRESS] [--trust]

  --trust               with --resume: run the code that a foreign sweep names
  --dry_run             print the trials and the resources they need, then stop
  --json                with --dry_run: as JSON
  --print_config        print the complete sweep and stop
  --scheduler.type=asha --seeds=[0,1,2] --stop.wall_time_s=3600 --max_concurrent=4 ...
                        any key of the sweep file
Examples are in experiments/sweeps/.
"""


def run(args: list[str]) -> int:
    """Run, resume or show a sweep; exit status 1 when trials failed for good."""
    from pld_ray.config import ConfigError
    from pld_ray.sweep.config import dump_sweep, load_sweep

    dry_run, as_json = pop_flag(args, "dry_run"), pop_flag(args, "json")
    print_config = pop_flag(args, "print_config")
    resume = pop_value(args, "resume")
    if resume is not None:
        ray_address, trust = pop_value(args, "ray_address"), pop_flag(args, "trust")
        if args or dry_run or print_config:
            raise ConfigError("--resume takes the sweep's own settings; give no other flags")

        from pld_ray.sweep.run import resume_sweep

        return conclude(
            resume_sweep(pathlib.Path(resume), ray_address, trust), pathlib.Path(resume)
        )
    sweep = load_sweep(args)
    if print_config:
        print(dump_sweep(sweep.config), end="")
        return 0
    if dry_run:
        from pld_ray.sweep.preview import preview

        print(preview(sweep, as_json))
        return 0

    from pld_ray.sweep.run import run_sweep

    return conclude(run_sweep(sweep), sweep.config.folder())


def conclude(summary: dict[str, Any], folder: pathlib.Path) -> int:
    """Say what came out, and what to do next."""
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
        print(f"next: pld-ray report {folder}")
        print(f"      pld-ray eval --checkpoint={best['folder']}/checkpoints/best")
    if summary["num_open"] or summary["num_failed"]:
        print(f"      pld-ray sweep --resume={folder}")
    return 1 if summary["num_failed"] else 0
