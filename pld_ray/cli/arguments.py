"""Taking single flags out of a command line before the rest is parsed as configuration."""

from __future__ import annotations

from pld_ray.errors import UserError


def pop_value(args: list[str], name: str) -> str | None:
    """Remove `--name=value` or `--name value` from args and return the value.

    Raises:
        UserError: the flag is given twice, or without a value.
    """
    found = pop_values(args, name)
    if len(found) > 1:
        raise UserError(f"--{name} is given twice: keep one of them")
    return found[0] if found else None


def pop_values(args: list[str], name: str) -> list[str]:
    """The values of a flag that may be given several times, in their order.

    Raises:
        UserError: the flag is given without a value.
    """
    found: list[str] = []
    i = 0
    while i < len(args):
        if args[i].startswith(f"--{name}="):
            found.append(args.pop(i).partition("=")[2])
        elif args[i] == f"--{name}":
            if i + 1 == len(args) or args[i + 1].startswith("--"):
                raise UserError(f"--{name} needs a value: --{name}=VALUE")
            found.append(args[i + 1])
            del args[i : i + 2]
        else:
            i += 1
    return found


def pop_flag(args: list[str], name: str) -> bool:
    """Remove a bare `--name` from args and say whether it was there."""
    present = f"--{name}" in args
    while f"--{name}" in args:
        args.remove(f"--{name}")
    return present
