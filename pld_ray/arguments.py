"""Taking single flags out of a command line before the rest is parsed as configuration."""

from __future__ import annotations


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


def pop_flag(args: list[str], name: str) -> bool:
    """Remove a bare `--name` from args and say whether it was there."""
    present = f"--{name}" in args
    while f"--{name}" in args:
        args.remove(f"--{name}")
    return present
