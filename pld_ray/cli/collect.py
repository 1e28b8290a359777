"""`pld-ray collect`."""

from __future__ import annotations

import argparse
import json
import operator
import pathlib
import shlex
from typing import TYPE_CHECKING, Any

from pld_ray.cli.arguments import Parser, on_this_machine, whole_number
from pld_ray.cli.train import tell_idle

if TYPE_CHECKING:
    from pld_ray.config import TrainConfig

DEFAULT_SUCCESSES = 20
OTHERWISE = (
    *("seed", "env.cameras", "env.image_size", "env.rendering", "env.assets"),
    *("env.episode_length", "runners.", "placement.", "policy.placement", "ray_address"),
)
"""Settings that may differ from the run's whose checkpoint is recorded."""


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser(
        "collect",
        "Records the base policy, a checkpoint's base + residual, or the simulator's scripted "
        "expert as one LeRobotDataset, from sampled placements. The same command goes on with a "
        "recording that was stopped. Any dotted key of the configuration is a flag, such as "
        "--env.cameras=[image].",
        takes_settings=True,
    )
    parser.value("root", "DIR", "folder of the dataset", read=on_this_machine, required=True)
    parser.value("checkpoint", "DIR", "record base + residual: a folder below RUN_DIR/checkpoints")
    parser.switch("expert", "record the scripted expert")
    parser.value(
        "device",
        "NAME",
        "a person takes over, as --intervention.device: scripted, keyboard, spacemouse, ...",
    )
    parser.value(
        "successes",
        "N",
        f"until N succeeded; {DEFAULT_SUCCESSES} unless --episodes is given. With both, until "
        "both are reached",
        read=whole_number,
    )
    parser.value("episodes", "N", "until N episodes are in the dataset", read=whole_number)
    parser.switch("keep_failures", "record episodes that failed too")
    parser.switch("trust", "with --checkpoint: run the code that a foreign run names")
    return parser


def run(args: argparse.Namespace) -> int:
    """Record."""
    from pld_ray.config import ConfigError
    from pld_ray.config.start_check import check_start

    if args.checkpoint is not None and args.expert:
        raise ConfigError("--checkpoint and --expert exclude each other: give one of them")
    config = configured(args)
    own = "none" if args.checkpoint else config.intervention.device
    set_device(config, args.device or own)
    if args.print_config:
        from pld_ray.config.file import dump_config

        print(dump_config(config), end="")
        return 0
    check_start(config, learns=False)
    if args.checkpoint is None:
        tell_idle(config, args.settings, learns=False)

    from pld_ray.cli.ls import plain_console
    from pld_ray.data.conversion_progress import TerminalSteps
    from pld_ray.data.episode_writer import kept_so_far
    from pld_ray.jobs.collect import Actor, Goal, collect

    successes = args.successes or (None if args.episodes else DEFAULT_SUCCESSES)
    goal = Goal(args.episodes, successes, args.keep_failures)
    actor: Actor = "residual" if args.checkpoint else "expert" if args.expert else "base"
    checkpoint = pathlib.Path(args.checkpoint) if args.checkpoint else None
    played = [0, 0]
    total = goal.successes or goal.episodes or 0
    done = kept_so_far(pathlib.Path(args.root), goal.successes is not None)
    with TerminalSteps(plain_console()).phase("recording", total, "episodes", done) as advance:

        def on_episode(kept: int, success: bool) -> None:
            played[0] += 1
            played[1] += success
            advance(kept)

        writer = collect(config, pathlib.Path(args.root), goal, actor, checkpoint, on_episode)
    demos = f"--demo_path={writer.root}"
    share = f", {played[1]} of {played[0]} played now succeeded" if played[0] else ""
    print(
        f"{writer.root}: {len(writer)} episodes, {sum(writer.successes)} successes, "
        f"{sum(writer.lengths)} frames{share}\n"
        f"next: pld-ray data {shlex.quote(str(writer.root))}\n"
        f"      {shlex.join(['pld-ray', 'train', *recorded(args, config), demos])}"
    )
    return 0


def recorded(args: argparse.Namespace, config: TrainConfig) -> list[str]:
    """What gives `pld-ray train` the environment and the base policy of a recording: what was given
    here, or where the checkpoint's run has them otherwise than by default."""
    if args.checkpoint is None:
        return list(args.settings)
    from pld_ray.config import TrainConfig
    from pld_ray.options import fields_of

    flags = []
    for field in fields_of(TrainConfig):  # whatever algorithm the checkpoint is of
        if field.is_group or not field.key.startswith(("env.", "policy.")):
            continue
        value = operator.attrgetter(field.key)(config)
        if value != field.default:
            text = value if isinstance(value, str) else json.dumps(value)
            flags.append(f"--{field.key}={text}")
    return flags


def set_device(config: TrainConfig, device: Any) -> None:
    """Who may take over; a person with a device sits at the one environment of this process. The
    person of a checkpoint's run is not here.

    Raises:
        ConfigError: no such device, or processes that it does not fit.
    """
    from pld_ray.config.intervention import ATTENDED

    config.intervention.device = device
    if device in ATTENDED:
        config.runners.num_env_runners, config.runners.num_envs_per_env_runner = 0, 1
    config.validate()


def configured(args: argparse.Namespace) -> TrainConfig:
    """The checkpoint's run's configuration with the settings given here, or these alone."""
    from pld_ray.config import ConfigError, TrainConfig
    from pld_ray.config.file import load_config, parse_flags, with_flags
    from pld_ray.config.keys import field_names
    from pld_ray.jobs.elsewhere import joined_now
    from pld_ray.runs.layout import CONFIG_FILE
    from pld_ray.runs.run_dir import run_of_checkpoint
    from pld_ray.runs.trust import check_trusted

    if args.checkpoint is None:
        return load_config(TrainConfig, args.settings)
    run = run_of_checkpoint(args.checkpoint)
    config = run.load_config()
    check_trusted(config, run.path / CONFIG_FILE, args.trust)
    flags = parse_flags(args.settings, field_names(TrainConfig))
    if learnt := [f"--{key}" for key in flags if not key.startswith(OTHERWISE)]:
        raise ConfigError(
            f"--checkpoint was learnt with its run's own configuration; remove {', '.join(learnt)} "
            "(other placements, cameras and processes can be given: --seed, --env.cameras, "
            "--runners.*)"
        )
    return with_flags(joined_now(config), flags)
