"""`pld-ray train`."""

from __future__ import annotations

import pathlib

from pld_ray.cli.arguments import pop_flag, pop_value
from pld_ray.jobs.start_up import StartUp

USAGE = """usage: pld-ray train [--config_path=FILE.yaml] [--key=value ...]

  --algorithm.utd=2 ...   any dotted key of the configuration
  --resume=RUN_DIR        continue a run from its newest checkpoint that is whole
  --checkpoint=NAME       with --resume: from this one of RUN_DIR/checkpoints
  --trust                 with --resume: run the code that a foreign run names
  --print_config          print the complete configuration and stop
  --explain KEY           say what a key, or the keys of a group, mean and stop
  --dry_run               check configuration, environment and policy, then stop
"""


def help_text() -> str:
    """The usage, and the keys by group."""
    from pld_ray.config.explain import groups_in_words

    return f"{USAGE}\n{groups_in_words()}"


def run(args: list[str]) -> int:
    """Train, or print or check a configuration."""
    with StartUp() as start:
        return configured(args, start)


def configured(args: list[str], start: StartUp) -> int:
    """`run`, whose steps are told to `start`."""
    print_config, dry_run = pop_flag(args, "print_config"), pop_flag(args, "dry_run")
    resume, checkpoint = pop_value(args, "resume"), pop_value(args, "checkpoint")
    trust = pop_flag(args, "trust")
    if resume is not None:
        start.left = f"continue with pld-ray train --resume={resume}"
    if not (print_config or dry_run):
        start.step("configuration")
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import config_path, load_config, main_print
    from pld_ray.runs.run_dir import RunDir

    if (checkpoint is not None or trust) and resume is None:
        raise ConfigError("--checkpoint=NAME and --trust go with --resume=RUN_DIR")
    preset = path.stem if (path := config_path(args)) else "default"
    if resume is not None:
        from pld_ray.runs.trust import check_trusted

        others = [a for a in args if not a.startswith("--total_steps")]
        if others:
            raise ConfigError(
                f"--resume takes the run's own configuration; remove {' '.join(others)} "
                "(only --total_steps can be given anew)"
            )
        config = RunDir(resume).load_config()
        check_trusted(config, RunDir(resume).path / "config.yaml", trust)
        if args:
            config.total_steps = load_config(TrainConfig, args).total_steps
    else:
        config = load_config(TrainConfig, args)
    if print_config:
        main_print(config)
        return 0
    from pld_ray.config.start_check import check_start

    check_start(config)
    if resume is None:
        RunDir(config.output_dir).check_new()
    if dry_run:
        return check(config)

    start.step("imports")
    from pld_ray.jobs.train import train

    summary = train(
        config, pathlib.Path(resume) if resume else None, preset, start, checkpoint, trust
    )
    if "residual_success" in summary:
        folder = RunDir(resume or config.output_dir).path
        base, residual = summary["base_success"], summary["residual_success"]
        print(
            f"base {base:.0%} -> base + residual {residual:.0%} on {summary['n_episodes']} held "
            f"init states, {summary['env_steps']} environment steps, "
            f"{summary['total_wall_s']:.0f} s\nresults: {folder}\n"
            f"next: pld-ray show {folder}\n"
            f"      pld-ray report {folder}\n"
            f"      pld-ray eval --checkpoint={summary['checkpoint']} --videos=0"
        )
    return 0


def check(config: object) -> int:
    """`--dry_run`."""
    from pld_ray.jobs.build import check_environment
    from pld_ray.jobs.train import check_strategy

    check_strategy(config)  # type: ignore[arg-type]
    online, offline = (
        f"{size / 1e6:,.0f} MB {name}"
        for name, size in check_environment(config).items()  # type: ignore[arg-type]
    )
    print(
        "configuration, environment and base policy are fine; when full, the replay takes "
        f"{online} and {offline}"
    )
    return 0
