"""`pld-ray`: train, pretrain, eval."""

from __future__ import annotations

import os
import sys

COMMANDS = {
    "train": "collect, train and evaluate a residual on a frozen base policy",
    "pretrain": "collect base-policy data and initialise the critic on it (Cal-QL), then stop",
    "eval": "evaluate a checkpoint: base and base + residual on the same init states",
}

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # before torch: two threads collapse when a neighbour is busy
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # what goes wrong is raised here as well
    # no network that the user did not ask for
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
}
"""Set for this process and the ones it starts, unless the user has set them."""

USAGE = """usage: pld-ray COMMAND [--key=value ...]

{commands}

pld-ray train --config_path=FILE.yaml --algorithm.utd=2 ...   keys as in --print_config
              --resume=RUN_DIR      continue a run from its newest checkpoint
              --print_config        print the complete configuration and stop
              --dry_run             check configuration, environment and policy, then stop
pld-ray pretrain --config_path=FILE.yaml ...   keys as in train; needs algorithm.calql_steps > 0;
              its critic is loaded by train --pretrained_critic=RUN_DIR/checkpoints/pretrained
pld-ray eval  --checkpoint=DIR      a folder below RUN_DIR/checkpoints
              [--n_episodes=100] [--output_dir=DIR]
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point; a mistake of the user's ends in one sentence and exit status 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not args or args[0] in ("-h", "--help", "help"):
        commands = "\n".join(f"  {name:8}{text}" for name, text in COMMANDS.items())
        print(USAGE.format(commands=commands))
        return 0 if args else 2
    command = args.pop(0)
    if command not in COMMANDS:
        print(
            f"pld-ray: {command!r} is no command; known are {', '.join(COMMANDS)}", file=sys.stderr
        )
        return 2

    from pld_ray.algorithm.calql import OfflineDataError
    from pld_ray.algorithm.learner import NonFiniteTrainingError, ReturnRangeError
    from pld_ray.algorithm.pretrained import PretrainedCriticError
    from pld_ray.config import ConfigError
    from pld_ray.rollout.messages import EnvRunnerError
    from pld_ray.rollout.offline_cache import OfflineCacheError
    from pld_ray.run_dir import RunError

    try:
        return {"train": run_train, "pretrain": run_pretrain, "eval": run_eval}[command](args)
    except (
        ConfigError,
        RunError,
        OfflineCacheError,
        OfflineDataError,
        PretrainedCriticError,
        NonFiniteTrainingError,
        ReturnRangeError,
        EnvRunnerError,
    ) as error:
        print(f"pld-ray: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pld-ray: aborted; the last checkpoint is kept", file=sys.stderr)
        return 130


def run_train(args: list[str]) -> int:
    """`pld-ray train`."""
    import pathlib

    from pld_ray.build import check_environment
    from pld_ray.config import ConfigError, TrainConfig, load_config, main_print, pop_flag
    from pld_ray.run_dir import RunDir
    from pld_ray.train import train

    print_config, dry_run = pop_flag(args, "print_config"), pop_flag(args, "dry_run")
    resume = pop_value(args, "resume")
    if resume is not None:
        others = [a for a in args if not a.startswith("--total_steps")]
        if others:
            raise ConfigError(
                f"--resume takes the run's own configuration; remove {' '.join(others)} "
                "(only --total_steps can be given anew)"
            )
        config = RunDir(resume).load_config()
        if args:
            config.total_steps = load_config(TrainConfig, args).total_steps
    else:
        config = load_config(TrainConfig, args)
    if print_config:
        main_print(config)
        return 0
    if dry_run:
        online, offline = (
            f"{size / 1e6:,.0f} MB {name}" for name, size in check_environment(config).items()
        )
        print(
            "configuration, environment and base policy are fine; when full, the replay takes "
            f"{online} and {offline}"
        )
        return 0
    summary = train(config, pathlib.Path(resume) if resume else None)
    if "residual_success" in summary:
        base, residual = summary["base_success"], summary["residual_success"]
        print(
            f"base {base:.0%} -> base + residual {residual:.0%} on {summary['n_episodes']} held "
            f"init states, {summary['env_steps']} environment steps, "
            f"{summary['total_wall_s']:.0f} s\nresults: {RunDir(resume or config.output_dir).path}"
        )
    return 0


def run_pretrain(args: list[str]) -> int:
    """`pld-ray pretrain`."""
    from pld_ray.config import TrainConfig, load_config, main_print, pop_flag
    from pld_ray.pretrain import pretrain

    print_config = pop_flag(args, "print_config")
    config = load_config(TrainConfig, args)
    if print_config:
        main_print(config)
        return 0
    summary = pretrain(config)
    print(
        f"{summary['calql_steps']} Cal-QL steps on {summary['offline_transitions']} offline "
        f"transitions: Q on data {summary['q_data']:.3f}, on policy actions "
        f"{summary['q_policy']:.3f}, {summary['bound_rate']:.0%} of them below the data's return\n"
        f"use it with: pld-ray train --pretrained_critic={summary['checkpoint']}"
    )
    return 0


def run_eval(args: list[str]) -> int:
    """`pld-ray eval`."""
    from pld_ray.config import ConfigError, pop_flag
    from pld_ray.evaluate import evaluate_checkpoint

    checkpoint = pop_value(args, "checkpoint")
    n_episodes = pop_value(args, "n_episodes") or "100"
    output_dir = pop_value(args, "output_dir")
    videos = pop_value(args, "videos") or ""
    parity = pop_flag(args, "parity")
    if args or checkpoint is None:
        raise ConfigError(
            "pld-ray eval takes --checkpoint=DIR [--n_episodes=N] [--output_dir=DIR] "
            "[--videos=ID,ID,...] [--parity]"
            + (f"; {' '.join(args)} is none of these" if args else "")
        )
    if not n_episodes.isdigit() or int(n_episodes) < 1:
        raise ConfigError(f"--n_episodes={n_episodes}: must be a whole number >= 1")
    if not all(part.strip().isdigit() for part in videos.split(",") if videos):
        raise ConfigError(f"--videos={videos}: must be init states, such as --videos=0,7,12")
    films = [int(part) for part in videos.split(",") if part.strip()]
    info = evaluate_checkpoint(checkpoint, int(n_episodes), output_dir, films, parity)
    print(
        f"base {info['base_success']:.0%}, base + residual {info['residual_success']:.0%} on "
        f"{n_episodes} init states"
    )
    if parity:
        print(f"beta 0 repeats the base policy's episodes: {'yes' if info['parity'] else 'NO'}")
    for path in (*info["videos"], info["path"]):
        print(f"written: {path}")
    return 0 if info["parity"] in (None, True) else 1


def pop_value(args: list[str], name: str) -> str | None:
    """Remove `--name=value` or `--name value` from args and return the value."""
    for i, arg in enumerate(args):
        if arg.startswith(f"--{name}="):
            del args[i]
            return arg.partition("=")[2]
        if arg == f"--{name}" and i + 1 < len(args):
            value = args[i + 1]
            del args[i : i + 2]
            return value
    return None


if __name__ == "__main__":
    sys.exit(main())
