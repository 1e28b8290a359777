"""`pld-ray train`."""

from __future__ import annotations

import argparse
import pathlib
import shlex
import sys
from typing import Any

from pld_ray.cli.arguments import Parser, configuration
from pld_ray.jobs.start_up import StartUp


def parser(command: str = "train", config_class: str = "TrainConfig") -> Parser:
    """The arguments of the command, or of one that trains another algorithm.

    Args:
        command: its name.
        config_class: see `arguments.configuration`.
    """
    parser = Parser(
        command,
        "Any dotted key of the configuration is a flag, such as --algorithm.utd=2; "
        "--config_path=FILE.yaml, or the name of a shipped preset, sets many.",
        takes_settings=True,
        config_class=config_class,
    )
    parser.value(
        "resume",
        "RUN_DIR",
        "continue a run from its newest checkpoint that is whole; may be given anew: "
        + ", ".join(ANEW),
    )
    parser.value("checkpoint", "NAME", "with --resume: from this one of RUN_DIR/checkpoints")
    parser.switch("trust", "with --resume: run the code that a foreign run names")
    parser.switch(
        "dry_run", "check configuration, environment, policy and MLflow server, then stop"
    )
    return parser


def run(args: argparse.Namespace, config_class: str = "TrainConfig") -> int:
    """Train, or print or check a configuration."""
    with StartUp() as start:
        return configured(args, start, config_class)


def configured(args: argparse.Namespace, start: StartUp, config_class: str) -> int:
    """`run`, whose steps `start` shows."""
    from pld_ray.runs.layout import resuming

    resume, checkpoint = args.resume, args.checkpoint
    if resume is not None:
        start.left = f"continue with pld-ray train {resuming(resume)}"
    if not (args.print_config or args.dry_run):
        start.step("configuration")
    from pld_ray.config import ConfigError
    from pld_ray.config.file import config_path, dump_config, load_config
    from pld_ray.runs.run_dir import RunDir

    if (checkpoint is not None or args.trust) and resume is None:
        raise ConfigError("--checkpoint=NAME and --trust go with --resume=RUN_DIR")
    preset = path.stem if (path := config_path(args.settings)) else "default"
    if resume is None:
        config = load_config(configuration(config_class), args.settings)
    else:
        config = resumed_config(resume, args.settings, args.trust)
    if args.print_config:
        print(dump_config(config), end="")
        return 0
    from pld_ray.config.start_check import check_start

    check_start(config)
    if resume is None:
        tell_idle(config, args.settings)
        RunDir(config.output_dir).check_new()
    if args.dry_run:
        return check(config, resume is not None)

    run = RunDir(resume or config.output_dir)
    if resume is not None and checkpoint is None and (summary := finished(config, run)):
        more = " ".join([resuming(resume), *reached(config, summary)])
        print(f"{run.path} has finished; to train on: pld-ray train {more}")
        return conclude(config, run, summary)
    start.step("imports")
    from pld_ray.jobs.train import train

    summary = train(config, pathlib.Path(resume) if resume else None, preset, start, checkpoint)
    return conclude(config, run, summary) if "residual_success" in summary else 0


def conclude(config: Any, run: Any, summary: dict[str, Any]) -> int:
    """Say what came out, and what to do next."""
    from pld_ray.rollout.entry_point import can_be_filmed

    base, residual = summary["base_success"], summary["residual_success"]
    learnt = "base + residual" if config.policy.type != "none" else "learnt policy"
    before = "" if base is None else f"base {base:.0%} -> "
    steps, total = summary["env_steps"], config.total_steps
    named, best = (shlex.quote(str(path)) for path in (run.path, summary["checkpoint"]))
    report = f"      pld-ray report {named}\n" if config.tracking.enabled else ""
    early = "" if steps >= total else f" of {total}: a validation reached {STOP_SUCCESS}"
    entry_point = config.env.entry_point
    filmed = " --videos=0" if entry_point is None or can_be_filmed(entry_point) else ""
    print(
        f"{before}{learnt} {residual:.0%} on {summary['n_episodes']} held "
        f"init states, {steps} environment steps{early}, "
        f"{summary['total_wall_s']:.0f} s\nresults: {run.path}\n"
        f"next: pld-ray show {named}\n{report}"
        f"      pld-ray eval --checkpoint={best}{filmed}"
    )
    return 0


def finished(config: Any, run: Any) -> dict[str, Any]:
    """`summary.json` of a run that this configuration gives nothing more to do; else empty."""
    from pld_ray.runs.layout import SUMMARY_FILE, read_json
    from pld_ray.runs.status import FINISHED, read_status
    from pld_ray.tracking.outbox import is_complete

    summary, status = read_json(run.path / SUMMARY_FILE), read_status(run.path)
    if status is None or status.state != FINISHED or "residual_success" not in summary:
        return {}
    if run.load_config() != config or not reached(config, summary):
        return {}  # what is given anew is to be kept, too
    if config.tracking.enabled and not is_complete(run.path):
        return {}  # it has something to send
    checkpoint = run.checkpoints / pathlib.Path(summary["checkpoint"]).name
    return {**summary, "checkpoint": str(checkpoint)}


def reached(config: Any, summary: dict[str, Any]) -> list[str]:
    """Flags that a run which came so far goes on with; none while there is something left to do."""
    enough, flags = config.evaluation.stop_success, []
    if enough is not None and summary.get("best_validation_success", -1.0) >= enough:
        flags.append(f"--{STOP_SUCCESS}=null")
    if summary.get("env_steps", 0) >= config.total_steps:
        flags.append(f"--total_steps={2 * config.total_steps}")
    return flags


def tell_idle(config: Any, settings: list[str], learns: bool = True) -> None:
    """Say on the console which options change nothing, see `idle_options`."""
    from pld_ray.config.file import config_path
    from pld_ray.config.idle import idle_options

    for sentence in idle_options(config, config_path(settings), learns):
        print(f"pld-ray: {sentence}", file=sys.stderr)


STOP_SUCCESS = "evaluation.stop_success"
WHERE = (
    *("ray_address", "ray_port", "placement.check", "placement.wait_s"),
    *("tracking.uri", "tracking.enabled"),
)
ANEW = ("total_steps", STOP_SUCCESS, "runners.num_gpus_per_learner", *WHERE)
"""What a run that goes on may be given anew: when it ends, and where it learns and logs."""


def resumed_config(
    resume: str, settings: list[str], trust: bool, wanted: type | None = None
) -> Any:
    """The configuration of a run that goes on, which may be to last longer, or elsewhere.

    Args:
        resume: folder of the run.
        settings: flags, of those in `ANEW` that the command has.
        trust: run the code that the run names, see `pld_ray.runs.trust`.
        wanted: see `RunDir.load_config`; others than of training are given `WHERE` alone.
    """
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import parse_flags, with_flags
    from pld_ray.config.keys import field_names
    from pld_ray.jobs.elsewhere import joined_now, with_absolute_store
    from pld_ray.runs.layout import CONFIG_FILE
    from pld_ray.runs.run_dir import RunDir
    from pld_ray.runs.trust import check_trusted, remember

    config = RunDir(resume).load_config(wanted or TrainConfig)
    known = field_names(type(config))
    flags = parse_flags(settings, known)
    anew = [key for key in (ANEW if wanted is None else WHERE) if key in known]
    if others := [f"--{key}" for key in flags if key not in anew]:
        raise ConfigError(
            f"--resume takes the run's own configuration; remove {', '.join(others)} "
            f"(only --{', --'.join(anew[:-1])} and --{anew[-1]} can be given anew)"
        )
    check_trusted(config, RunDir(resume).path / CONFIG_FILE, trust)
    resumed = with_flags(joined_now(config), flags)
    if "tracking.uri" in flags:
        resumed = with_absolute_store(resumed)
    if not trust:  # what the run itself names is known, and the rest this user has given now
        remember([resumed])
    return resumed


def check(config: Any, resumes: bool) -> int:
    """`--dry_run`."""
    from pld_ray.jobs.build import check_environment
    from pld_ray.jobs.open_tracker import check_tracker
    from pld_ray.jobs.train import check_learners, check_strategy

    check_strategy(config)
    check_learners(config)
    if not resumes:
        check_tracker(config)
    sizes = check_environment(config, resumes=resumes)
    online, offline = (f"{size / 1e6:,.0f} MB {name}" for name, size in sizes.items())
    print(
        "configuration, environment and base policy are fine; when full, the replay takes "
        f"{online} and {offline}"
    )
    return 0
