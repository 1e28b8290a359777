"""`pld-ray COMMAND`: finds the command and turns a user's mistake into one sentence."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import signal
import sys
from typing import Any

from pld_ray.errors import user_error

COMMANDS = {
    "train": "collect, train and evaluate a residual on a frozen base policy",
    "acrlpd": "improve a policy over action chunks: from demonstrations, then online (Q-chunking)",
    "actor": "lend this machine, the robot's, to a learner elsewhere; join and leave at will",
    "pretrain": "collect base-policy data and initialise the critic on it (Cal-QL), then stop",
    "eval": "evaluate a checkpoint: base and base + residual on the same init states",
    "sweep": "train many configurations and seeds from one file, on Ray Tune",
    "report": "one page about runs or a sweep: curves, tables, importance",
    "ls": "runs and sweeps below a folder, with success, steps and state",
    "show": "one run in detail, and what can be done with it",
    "register": "put a run's best policy into MLflow's model registry",
    "finetune": "supervised fine-tuning of a LeRobot policy on LeRobotDatasets",
    "distill": "give what residuals have learnt back to their base policy",
    "export": "what a run has learnt, as a policy folder for LeRobot and --policy.path",
    "send": "send MLflow what a run could not send while the server was away",
    "collect": "record a policy, or the scripted expert, as a LeRobotDataset",
    "classifier": "a reward from pictures: collect frames, train a classifier, evaluate it",
    "convert": "recordings of another format into a LeRobotDataset",
    "norm-stats": "means, deviations and quantiles of a dataset, in OpenPI's format",
    "data": "look at a dataset: figures, outliers, a page with film strips",
    "completion": "a completion script for bash, zsh or fish",
}
"""Each lies in `pld_ray/cli/<name>.py` (a hyphen is an underscore), imported when called: its
`parser()` declares the arguments, its `run(args)` takes them."""

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


def main(argv: list[str] | None = None) -> int:
    """Entry point; a mistake of the user's ends in one sentence and exit status 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if "_ARGCOMPLETE" in os.environ:
        from pld_ray.cli.completion import complete

        complete()
    try:
        status = answer(args)
        print(end="", flush=True)  # here, where a reader that has gone is no error
        return status
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        reason = str(stop) or "aborted; checkpoints and whole episodes are kept"
        print(f"pld-ray: {reason}", file=sys.stderr)
        gc.freeze()  # or the interpreter looks through all that was imported, for seconds
        exec("")  # an interrupt that left an `exec` of text is marked as unhandled until the next
        return 130
    except SystemExit as end:
        if end.code != signal.SIGTERM:  # which Ray's handler raises
            raise
        print("pld-ray: ended; checkpoints and whole episodes are kept", file=sys.stderr)
        return 128 + signal.SIGTERM
    except Exception as error:
        message = user_error(error) or file_error(error)
        if message is None:
            raise
        print(f"pld-ray: {message}", file=sys.stderr)
        return 2


def answer(args: list[str]) -> int:
    """Run the command that the arguments begin with, or say what there is."""
    if args == ["--version"]:
        from importlib.metadata import version

        print(f"pld-ray {version('pld-ray')}")
        return 0
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else 2
    command, *rest = args
    if command in COMMANDS:
        return run_command(module_of(command), rest)
    close = difflib.get_close_matches(command, [*COMMANDS, "--version", "--help"], n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(COMMANDS)}"
    print(f"pld-ray: {command!r} is no command; {hint}", file=sys.stderr)
    return 2


def module_of(command: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"pld_ray.cli.{command.replace('-', '_')}")


def run_command(module: Any, args: list[str]) -> int:
    """Show a command's help, explain a key, or run it."""
    parser = module.parser()
    if "-h" in args or "--help" in args:
        print(parser.format_help().rstrip())
        if parser.takes_settings:
            from pld_ray.config.explain import list_groups

            command = parser.prog.removeprefix("pld-ray ")
            print(f"\n{list_groups(parser.configurations(args)[0], command)}")
        return 0
    from pld_ray.config.credentials import refuse_password

    for arg in args:
        refuse_password(arg, arg.partition("=")[0] if "=" in arg else "an argument")
    found = parser.read(args)
    if getattr(found, "explain", None) is not None:
        from pld_ray.config.explain import explain

        print(explain(found.explain, parser.class_with(found.explain, args)))
        return 0
    return int(module.run(found))


def file_error(error: Exception) -> str | None:
    """What the system refused to do with which file."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return None


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pld-ray COMMAND [--key=value ...]",
            "",
            *lines,
            "",
            "pld-ray COMMAND --help: what it takes; pld-ray train --explain KEY: what a key means; "
            "pld-ray --version",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
